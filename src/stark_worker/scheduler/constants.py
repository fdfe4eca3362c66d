"""The constants of a candidate that its variants replace.

A candidate with variants defines whole numbers in a dictionary at the top level of its source, and takes each of them
from there: as an argument of a kernel, or as a macro of the compiler.

    CONSTANTS = {"BLOCK": 128, "UNROLL": 4}
    load_inline(..., extra_cflags=[f"-D{name}={value}" for name, value in CONSTANTS.items()])

A variant is the same source with other numbers there, and nothing else: an ordinary candidate.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

NAME = "CONSTANTS"


class ConstantsMissing(ValueError):
    """A source does not define the constants that a variant replaces."""


def with_constants(source: str, constants: Mapping[str, int]) -> str:
    """Return the source with these numbers in place of its own; raise ``ConstantsMissing`` if it has none of a name."""
    places = _places(source)
    if unknown := sorted(constants.keys() - places.keys()):
        known = ", ".join(places) or "no whole number"
        raise ConstantsMissing(
            f"A variant names the constant {unknown[0]}, which the source does not define: its {NAME} hold {known}."
        )
    lines = [line.encode() for line in source.splitlines(keepends=True)]  # the parser counts in bytes
    for name in sorted(constants, key=lambda name: (places[name].lineno, places[name].col_offset), reverse=True):
        place = places[name]
        line = lines[place.lineno - 1]
        number = str(constants[name]).encode()
        lines[place.lineno - 1] = line[: place.col_offset] + number + line[place.end_col_offset :]
    return b"".join(lines).decode()


def _places(source: str) -> dict[str, ast.expr]:
    """Return where the number of each constant stands; nothing if the source defines none."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found = [
        statement.value
        for statement in body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Dict)
        and [ast.unparse(target) for target in statement.targets] == [NAME]
    ]
    pairs = [pair for one in found[:1] for pair in zip(one.keys, one.values, strict=True)]
    return {name: value for key, value in pairs if (name := _text_of(key)) is not None and _is_whole_number(value)}


def _text_of(key: ast.expr | None) -> str | None:
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def _is_whole_number(value: ast.expr) -> bool:
    number = value.operand if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub) else value
    is_whole = isinstance(number, ast.Constant) and type(number.value) is int
    return is_whole and value.lineno == value.end_lineno
