"""Marking a region of a source for a move: comments are added, nothing else is touched."""

from __future__ import annotations

import ast
import textwrap

_WIDTH = 100


def mark(source: str, region: str, advice: str, markers: tuple[str, str]) -> str:
    """The source with the region wrapped in markers and the advice beside it as comments."""
    lines = source.rstrip("\n").split("\n")
    found = _find(lines, region) or _forward(source)
    first, last, in_cpp = found
    indent = " " * (len(lines[first]) - len(lines[first].lstrip()))
    comments = [f"{indent}{'//' if in_cpp else '#'} {line}" for line in textwrap.wrap(advice, _WIDTH)]
    begin, end = (f"{indent}/* {each} */" if in_cpp else f"{indent}# {each}" for each in markers)
    marked = [*lines[:first], begin, *comments, *lines[first : last + 1], end, *lines[last + 1 :]]
    return "\n".join(marked) + "\n"


def _find(lines: list[str], region: str) -> tuple[int, int, bool] | None:
    """First and last line of a region in a source of the playbook's own, and whether it is inside C++."""
    if region == "flags":
        return _between(lines, "        extra_cflags=[", "        ],", False)
    if region == "kernel":
        cpp = _between(lines, 'extern "C"', '"""', True)
        return (cpp[0], cpp[1] - 1, True) if cpp else _between(lines, "@triton.jit", "class ModelNew", False, 1)
    return None


def _between(lines: list[str], start: str, stop: str, in_cpp: bool, less: int = 0) -> tuple[int, int, bool] | None:
    first = next((number for number, line in enumerate(lines) if line.startswith(start)), None)
    if first is None:
        return None
    last = next((number for number in range(first + 1, len(lines)) if lines[number].startswith(stop)), None)
    return None if last is None else (first, last - less, in_cpp)


def _forward(source: str) -> tuple[int, int, bool]:
    """The body of forward() in the model's class."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name in ("Model", "ModelNew"):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == "forward":
                    return part.body[0].lineno - 1, (part.end_lineno or part.lineno) - 1, False
    raise SyntaxError("there is no forward() to improve")
