"""Marks the regions of a source that a plan will change, by adding comments."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_WIDTH = 100
_OLD_SUPER = re.compile(r"super\(\w+, self\)")


class Region(NamedTuple):
    """A part of a source that a move may change: its lines, and their text without layout."""

    name: str
    first: int
    last: int
    text: str

    @property
    def in_cpp(self) -> bool:
        return "extern" in self.text


def mark_regions(source: str, made: str, advice: str, markers: tuple[str, str]) -> str:
    """Wrap the regions that differ in ``made`` in markers, with the advice as comments.

    Regions never nest. They are wrapped from the last one up, so that line numbers stay valid.
    """
    lines = source.rstrip("\n").split("\n")
    for region in sorted(find_changed(source, made), key=lambda each: each.first, reverse=True):
        indent = " " * (len(lines[region.first]) - len(lines[region.first].lstrip()))
        begin, end = (f"{indent}/* {each} */" if region.in_cpp else f"{indent}# {each}" for each in markers)
        sign = "//" if region.in_cpp else "#"
        comments = [f"{indent}{sign} {line}" for text in advice.split("\n") for line in textwrap.wrap(text, _WIDTH)]
        lines[region.first : region.last + 1] = [begin, *comments, *lines[region.first : region.last + 1], end]
    return "\n".join(lines) + "\n"


def find_changed(source: str, made: str) -> list[Region]:
    """The regions that differ between two sources; forward() if none does."""
    found, others = list(find_regions(source)), {each.name: each.text for each in find_regions(made)}
    differing = [each for each in found if each.name in others and each.text != others[each.name]]
    return differing or [each for each in found if each.name == "forward"]


def find_regions(source: str) -> Iterator[Region]:
    """The regions of a source: kernel, flags, construction and forward()."""
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
    yield from _method_regions(source)


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


def _method_regions(source: str) -> Iterator[Region]:
    """The body of __init__(), and all of forward() with forward_tile()."""
    methods = _model_methods(source)
    if "forward" not in methods:
        raise SyntaxError("there is no forward() to improve")
    forward = methods["forward"]
    together = [forward, methods.get("forward_tile", forward)]
    if construction := methods.get("__init__"):
        yield Region(
            "construction", construction.body[0].lineno - 1, _last_line(construction), _unparse(construction.body)
        )
    first = min([forward.lineno, *(each.lineno for each in forward.decorator_list)]) - 1
    bodies = [part for each in together for part in (*each.decorator_list, *each.body)]
    yield Region("forward", first, max(map(_last_line, together)), _unparse(bodies))


def _model_methods(source: str) -> dict[str, ast.FunctionDef]:
    """The methods of ModelNew, or of a task's Model."""
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    found = classes.get("ModelNew") or classes.get("Model")
    return {part.name: part for part in found.body if isinstance(part, ast.FunctionDef)} if found else {}


def _last_line(method: ast.FunctionDef) -> int:
    return (method.end_lineno or method.lineno) - 1


def _unparse(parts: Iterable[ast.AST]) -> str:
    return _OLD_SUPER.sub("super()", "\n".join(map(ast.unparse, parts)))
