"""Classes and functions of a task's file: bases, methods, and arguments bound as Python binds them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stark.models.playbook.trace.objects import Module
from stark.models.playbook.trace.values import Unsupported

Method = ast.FunctionDef
PLAIN_BASES = ("nn.Module", "torch.nn.Module", "Module", "object")


@dataclass(frozen=True)
class BoundMethod:
    """A method of a module, and the class that defines it."""

    module: Module
    node: Method
    owner: ast.ClassDef


@dataclass(frozen=True)
class Super:
    """The classes above one, for a module."""

    module: Module
    owner: ast.ClassDef


def list_classes(node: ast.ClassDef, defined: Mapping[str, ast.AST]) -> Iterator[ast.ClassDef]:
    """Yield a class and its bases in the file, nearest first."""
    yield node
    for base in node.bases:
        found = defined.get(base.id) if isinstance(base, ast.Name) else None
        if isinstance(found, ast.ClassDef):
            yield from list_classes(found, defined)


def find_method(
    node: ast.ClassDef, name: str, defined: Mapping[str, ast.AST], after: ast.ClassDef | None = None
) -> tuple[Method, ast.ClassDef] | None:
    """Return a method and the class that defines it; ``after`` begins with the classes above one."""
    classes = list(list_classes(node, defined))
    for each in classes[classes.index(after) + 1 if after else 0 :]:
        for member in each.body:
            if isinstance(member, ast.FunctionDef) and member.name == name:
                return member, each
    return None


def foreign_base(node: ast.ClassDef, defined: Mapping[str, ast.AST]) -> str:
    """Return the base of PyTorch that is no plain module, such as nn.Sequential."""
    for each in list_classes(node, defined):
        for base in each.bases:
            text = ast.unparse(base)
            if text not in PLAIN_BASES and text not in defined:
                return text
    return ""


def bind(
    node: Method, args: Sequence[Any], options: Mapping[str, Any], evaluate: Callable[[ast.expr], Any]
) -> dict[str, Any]:
    """Return the values of a function's parameters."""
    given, names = node.args, [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    bound = dict(zip(names, args, strict=False))
    rest = dict(options)
    if given.vararg:
        bound[given.vararg.arg] = list(args[len(names) :])
    elif len(args) > len(names):
        raise Unsupported(f"a call of {node.name} with {len(args)} arguments")
    defaults = dict(zip(names[len(names) - len(given.defaults) :], given.defaults, strict=True))
    defaults |= {each.arg: value for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}
    for name in (*names, *(each.arg for each in given.kwonlyargs)):
        if name in rest:
            bound[name] = rest.pop(name)
        elif name not in bound and name in defaults:
            bound[name] = evaluate(defaults[name])
        elif name not in bound:
            raise Unsupported(f"a call of {node.name} without {name}")
    if given.kwarg:
        bound[given.kwarg.arg] = rest
    elif rest:
        raise Unsupported(f"a call of {node.name} with {', '.join(rest)}")
    return bound
