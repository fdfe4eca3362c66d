"""Reads syntax trees: names of arguments, names that a definition needs, attributes that methods write."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from stark_worker.capture.source.lookup import bound_names


def parse_expression(text: str, node: ast.AST) -> ast.expr:
    return ast.copy_location(ast.parse(text, mode="eval").body, node)


def argument_names(arguments: ast.arguments) -> list[str]:
    several = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *several)]


def function_names(body: Sequence[ast.stmt]) -> set[str]:
    declared = {name for part in body for node in ast.walk(part) if isinstance(node, ast.Global) for name in node.names}
    return set().union(*map(bound_names, body)) - declared


def is_static(node: ast.FunctionDef) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id in ("staticmethod", "classmethod") for each in node.decorator_list
    )


def strip_annotations(node: Any, is_known: Any) -> None:
    """Leave out annotations that would need more imports."""
    arguments = node.args
    several = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *several):
        if each.annotation is not None and not is_known(each.annotation):
            each.annotation = None
    if node.returns is not None and not is_known(node.returns):
        node.returns = None


def stored_attributes(node: ast.AST) -> set[str]:
    """Return the attributes that methods other than the constructor write."""
    members = node.body if isinstance(node, ast.ClassDef) else []
    return {
        each.attr
        for member in members
        if isinstance(member, ast.FunctionDef) and member.name != "__init__"
        for each in ast.walk(member)
        if isinstance(each, ast.Attribute) and not isinstance(each.ctx, ast.Load)
    }


def names_at_definition(entry: ast.stmt) -> Iterator[str]:
    """Yield the names that a definition needs when it is made, not when it is called."""
    match entry:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            defaults = [each for each in entry.args.kw_defaults if each is not None]
            parts: list[ast.AST] = [*entry.decorator_list, *entry.args.defaults, *defaults]
        case ast.ClassDef():
            parts = [*entry.bases, *entry.decorator_list, *(each.value for each in entry.keywords)]
            for member in entry.body:
                yield from names_at_definition(member)
        case _:
            parts = [entry]
    for part in parts:
        yield from (node.id for node in ast.walk(part) if isinstance(node, ast.Name))
