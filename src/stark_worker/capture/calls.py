"""The form of a call: nested values with numbered tensors, to compare calls, to rebuild them, and to write them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stark_worker.capture.faults import CaptureFault
from stark_worker.capture.source.definitions import Definitions
from stark_worker.capture.source.literals import format_value

CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class Tensor:
    """The place of a tensor in a nested value."""

    number: int


@dataclass(frozen=True)
class Constant:
    """A value that is the same in every call."""

    value: Any


@dataclass(frozen=True)
class Nested:
    """A container: its type, its keys and what they hold. ``keys`` of lists and tuples are numbers."""

    kind: type
    keys: tuple[Any, ...]
    items: tuple[Tree, ...]


Tree = Tensor | Constant | Nested


def flatten(value: Any, tensors: list[torch.Tensor], path: str) -> Tree:
    """Return the form of a value; append its tensors."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return Tensor(len(tensors) - 1)
    if isinstance(value, CONSTANTS):
        return Constant(value)
    if (content := _content(value)) is None:
        raise CaptureFault(
            f"{path} is a {type(value).__name__}; tensors, numbers, text, lists, tuples, dictionaries and dataclasses "
            "can be captured."
        )
    keys, items = tuple(content), content.values()
    return Nested(
        type(value),
        keys,
        tuple(flatten(item, tensors, f"{path}[{key!r}]") for key, item in zip(keys, items, strict=True)),
    )


def _content(value: Any) -> dict[Any, Any] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Mapping):
        return dict(value)
    return dict(enumerate(value)) if isinstance(value, list | tuple) else None


def rebuild(tree: Tree, tensors: Sequence[torch.Tensor]) -> Any:
    """Return the value of this form with these tensors."""
    if isinstance(tree, Tensor):
        return tensors[tree.number]
    if isinstance(tree, Constant):
        return tree.value
    items = [rebuild(item, tensors) for item in tree.items]
    if dataclasses.is_dataclass(tree.kind):
        return tree.kind(**dict(zip(tree.keys, items, strict=True)))
    if issubclass(tree.kind, Mapping):
        return tree.kind(dict(zip(tree.keys, items, strict=True)))  # type: ignore[call-arg]
    kind: Any = tree.kind
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def find_leaves(tree: Tree, name: str) -> Iterator[tuple[Tensor, str]]:
    """Yield the tensors of a form, each with a name made of its path."""
    if isinstance(tree, Tensor):
        yield tree, name
    elif isinstance(tree, Nested):
        for key, item in zip(tree.keys, tree.items, strict=True):
            yield from find_leaves(item, re.sub(r"\W+", "_", f"{name}_{key}").strip("_"))


def format_tree(tree: Tree, names: Sequence[str], definitions: Definitions, path: str) -> str:
    """Write a value of this form, with names in place of tensors."""
    if isinstance(tree, Tensor):
        return names[tree.number]
    if isinstance(tree, Constant):
        return format_value(tree.value, definitions, path)
    items = [format_tree(item, names, definitions, path) for item in tree.items]
    if tree.kind is list:
        return f"[{', '.join(items)}]"
    if tree.kind is tuple:
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if issubclass(tree.kind, Mapping) and not dataclasses.is_dataclass(tree.kind):
        content = ", ".join(f"{key!r}: {item}" for key, item in zip(tree.keys, items, strict=True))
        kind = "" if tree.kind is dict else definitions.refer(tree.kind, path)
        return f"{kind}({{{content}}})" if kind else f"{{{content}}}"
    named = hasattr(tree.kind, "_fields") or not dataclasses.is_dataclass(tree.kind)
    texts = items if named else [f"{key}={item}" for key, item in zip(tree.keys, items, strict=True)]
    return f"{definitions.refer(tree.kind, path)}({', '.join(texts)})"


def format_paths(tree: Tree, path: str) -> Iterator[str]:
    """Yield the expressions that take the tensors out of a value."""
    if isinstance(tree, Tensor):
        yield path
    elif isinstance(tree, Nested):
        is_record = dataclasses.is_dataclass(tree.kind)
        for key, item in zip(tree.keys, tree.items, strict=True):
            yield from format_paths(item, f"{path}.{key}" if is_record else f"{path}[{key!r}]")


@dataclass(frozen=True)
class Argument:
    """One argument of a call, by the name of its parameter."""

    name: str
    kind: Any
    tree: Tree


@dataclass(frozen=True)
class Call:
    """The form of a call and of its result. Arguments that equal the parameters' defaults are left out."""

    arguments: tuple[Argument, ...]
    result: Tree

    @staticmethod
    def bind(
        forward: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: list[torch.Tensor]
    ) -> tuple[Argument, ...]:
        """Return the form of the arguments; append their tensors."""
        signature = inspect.signature(forward)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise CaptureFault(f"forward() does not take these inputs: {error}.") from error
        found = []
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            for each, one in _spread(parameter, value):
                tree = flatten(one, tensors, each)
                if tree != Constant(parameter.default):
                    found.append(Argument(each, parameter.kind, tree))
        return tuple(found)

    def is_plain(self, forward: Any) -> bool:
        """True if the call passes a tensor for each parameter, and returns a tensor or several."""
        names = list(inspect.signature(forward).parameters)
        given = [each.name for each in self.arguments]
        tensors = all(isinstance(each.tree, Tensor) for each in self.arguments)
        return tensors and given == names and _is_plain_result(self.result)


def _spread(parameter: inspect.Parameter, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield one argument, or each of ``*args`` and ``**kwargs``."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        yield from ((f"{parameter.name}_{number}", each) for number, each in enumerate(value))
    elif parameter.kind is parameter.VAR_KEYWORD:
        yield from value.items()
    else:
        yield parameter.name, value


def _is_plain_result(tree: Tree) -> bool:
    if isinstance(tree, Nested) and tree.kind in (tuple, list):
        return all(isinstance(item, Tensor) for item in tree.items)
    return isinstance(tree, Tensor)


def write_forward(call: Call, forward: Any, names: Sequence[str], definitions: Definitions) -> str:
    """Write a forward() that takes and returns tensors alone, around the original one."""
    texts, order = [], list(inspect.signature(forward).parameters)
    for place, each in enumerate(call.arguments):
        text = format_tree(each.tree, names, definitions, each.name)
        by_keyword = each.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        by_keyword = by_keyword or (each.kind is each.kind.POSITIONAL_OR_KEYWORD and order[place] != each.name)
        texts.append(f"{each.name}={text}" if by_keyword else text)
    inner = f"super().forward({', '.join(texts)})"
    head = f"def forward(self, {', '.join(names)}):\n"
    if _is_plain_result(call.result):
        return f"{head}    return {inner}\n"
    paths = list(format_paths(call.result, "result"))
    returned = paths[0] if len(paths) == 1 else ", ".join(paths)
    return f"{head}    result = {inner}\n    return {returned}\n"


def leaf_names(call: Call) -> list[str]:
    """Return a name for each tensor of the arguments."""
    names: list[str] = []
    for argument in call.arguments:
        for _, name in find_leaves(argument.tree, argument.name):
            chosen, number = name, 2
            while chosen in names or chosen in ("self", "result"):
                chosen, number = f"{name}_{number}", number + 1
            names.append(chosen)
    return names
