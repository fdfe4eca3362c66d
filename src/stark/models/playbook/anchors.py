"""Marking regions of a source for a plan: comments are added, nothing else is touched."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_WIDTH = 100
_OLD_SUPER = re.compile(r"super\(\w+, self\)")


class Region(NamedTuple):
    """A part of a source that a move may change: its lines, and what they say apart from how it is laid out."""

    name: str
    first: int
    last: int
    text: str

    @property
    def in_cpp(self) -> bool:
        return "extern" in self.text


def mark(source: str, made: str, advice: str, markers: tuple[str, str]) -> str:
    """The source with what is to become different in ``made`` wrapped in markers, the advice beside it as comments.

    Regions lie beside each other, never within: each is wrapped once, from the last one up.
    """
    lines = source.rstrip("\n").split("\n")
    for region in sorted(changed(source, made), key=lambda each: each.first, reverse=True):
        indent = " " * (len(lines[region.first]) - len(lines[region.first].lstrip()))
        begin, end = (f"{indent}/* {each} */" if region.in_cpp else f"{indent}# {each}" for each in markers)
        sign = "//" if region.in_cpp else "#"
        comments = [f"{indent}{sign} {line}" for said in advice.split("\n") for line in textwrap.wrap(said, _WIDTH)]
        lines[region.first : region.last + 1] = [begin, *comments, *lines[region.first : region.last + 1], end]
    return "\n".join(lines) + "\n"


def changed(source: str, made: str) -> list[Region]:
    """The regions of a source that another one has otherwise; forward() where it is none of them."""
    found, others = list(regions(source)), {each.name: each.text for each in regions(made)}
    differing = [each for each in found if each.name in others and each.text != others[each.name]]
    return differing or [each for each in found if each.name == "forward"]


def regions(source: str) -> Iterator[Region]:
    """Whatever of kernel, flags, construction and forward() a source has."""
    lines = source.rstrip("\n").split("\n")
    for name, start, stop in (
        ("kernel", "#include <cstring>", '"""'),
        ("kernel", "@triton.jit", "class ModelNew"),
        ("flags", "        extra_cflags=[", "        ],"),
    ):
        if found := _between(lines, start, stop):
            first, last = found[0] + (start[0] == "#"), found[1] - (name == "kernel")
            first, last = _without_blanks(lines, first, last)
            yield Region(name, first, last, "\n".join(lines[first : last + 1]))
    yield from _methods(source)


def _between(lines: list[str], start: str, stop: str) -> tuple[int, int] | None:
    first = next((number for number, line in enumerate(lines) if line.startswith(start)), None)
    if first is None:
        return None
    last = next((number for number in range(first + 1, len(lines)) if lines[number].startswith(stop)), None)
    return None if last is None else (first, last)


def _without_blanks(lines: list[str], first: int, last: int) -> tuple[int, int]:
    while first < last and not lines[first].strip():
        first += 1
    while last > first and not lines[last].strip():
        last -= 1
    return first, last


def _methods(source: str) -> Iterator[Region]:
    """The body of __init__(), and forward() as a whole with what it does for each tile."""
    methods = _model(source)
    if "forward" not in methods:
        raise SyntaxError("there is no forward() to improve")
    forward = methods["forward"]
    together = [forward, methods.get("forward_tile", forward)]
    if construction := methods.get("__init__"):
        yield Region("construction", construction.body[0].lineno - 1, _end(construction), _text(construction.body))
    first = min([forward.lineno, *(each.lineno for each in forward.decorator_list)]) - 1
    bodies = [part for each in together for part in (*each.decorator_list, *each.body)]
    yield Region("forward", first, max(map(_end, together)), _text(bodies))


def _model(source: str) -> dict[str, ast.FunctionDef]:
    """The methods of a candidate's ModelNew, otherwise of a task's Model."""
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    found = classes.get("ModelNew") or classes.get("Model")
    return {part.name: part for part in found.body if isinstance(part, ast.FunctionDef)} if found else {}


def _end(method: ast.FunctionDef) -> int:
    return (method.end_lineno or method.lineno) - 1


def _text(parts: Iterable[ast.AST]) -> str:
    return _OLD_SUPER.sub("super()", "\n".join(map(ast.unparse, parts)))
