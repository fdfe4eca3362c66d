"""Regions of a source by function name or line range, and the scaffold in which they are marked."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stark.agents.anchors import BEGIN, END
from stark.agents.source_lines import Span, normalise_newlines, read_source

MAX_NAMED = 30  # regions that a prompt names
MAX_ASKED = 12  # regions that one plan may name

_RANGE = re.compile(r"(?:lines?\s*)?(\d+)(?:\s*(?:-|–|to|\.\.)\s*(\d+))?", re.IGNORECASE)
_CPP_FUNCTION = re.compile(r"^[^\n#;{}/][^;{}]*?\b([A-Za-z_]\w*)\s*\([^;{}]*\)[^;{}()]*\{", re.MULTILINE)
_STATEMENTS = {"if", "for", "while", "switch", "catch", "asm"}
_CPP_NOISE = re.compile(r"//[^\n]*|/\*[\s\S]*?\*/|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)+'")


@dataclass(frozen=True)
class Region:
    """Lines of a source, counted from 1, both inclusive."""

    name: str
    first: int
    last: int


def find_regions(source: str) -> list[Region]:
    """Return the functions and classes of a source, in Python and in its strings of C++, in order."""
    source = normalise_newlines(source)
    found = [*_python_regions(source)]
    for span in read_source(source).strings:
        found += _cpp_regions(source, span)
    return sorted(found, key=lambda region: (region.first, -region.last))


def choose_regions(text: str, source: str) -> tuple[list[Region], list[str]]:
    """Return the regions that a plan names, and what is wrong with it, each as a sentence for the planner."""
    chosen: list[Region] = []
    wrong: list[str] = []
    known, length = find_regions(source), len(normalise_newlines(source).rstrip("\n").split("\n"))
    names = [name.strip().strip("`'\"") for name in re.split(r"[,;\n]", text)]
    for name in filter(None, names[:MAX_ASKED]):
        matches = [region for region in known if region.name == _bare(name)]
        if lines := _RANGE.fullmatch(name):
            first, last = int(lines[1]), int(lines[2] or lines[1])
            matches = [Region(name, first, min(last, length))] if 1 <= first <= last and first <= length else []
        chosen += matches
        if not matches:
            wrong.append(f"The base has no region {name!r}; name its functions or line ranges such as 10-25.")
    if not chosen and not wrong:
        wrong.append("No region is named; name the functions or line ranges of the base that change.")
    return chosen, wrong


def make_scaffold(source: str, regions: Sequence[Region]) -> str:
    """Return the source with these regions between markers. No line of code changes."""
    source = normalise_newlines(source)
    lines = source.split("\n")
    places = _places(lines, read_source(source).strings)
    wanted = {number for region in regions for number in range(region.first, region.last + 1)}
    for first, last in reversed(list(_runs(lines, wanted, places))):
        indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
        form = "{}# {}" if places[first] == -1 else "{}/* {} */"
        lines[last:last] = [form.format(indent, END)]
        lines[first - 1 : first - 1] = [form.format(indent, BEGIN)]
    return "\n".join(lines)


def _bare(name: str) -> str:
    """The last part of a name: ``ModelNew.forward()`` is ``forward``."""
    return re.split(r"\.|::", re.sub(r"[(<].*", "", name))[-1].removeprefix("def ").removeprefix("class ").strip()


def _python_regions(source: str) -> Iterator[Region]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield Region(node.name, first, node.end_lineno or first)


def _cpp_regions(source: str, span: Span) -> Iterator[Region]:
    """Yield the functions of a string of C++. Braces in comments and literals do not count."""
    text = _CPP_NOISE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source[span.start : span.end])
    base, place = source.count("\n", 0, span.start) + 1, 0
    while match := _CPP_FUNCTION.search(text, place):
        place = _end_of_block(text, match.end())
        if match[1] not in _STATEMENTS:
            first = match.start() + len(match[0]) - len(match[0].lstrip())
            yield Region(match[1], base + text.count("\n", 0, first), base + text.count("\n", 0, place - 1))


def _end_of_block(text: str, place: int) -> int:
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, place):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    return len(text)


def _places(lines: Sequence[str], strings: Sequence[Span]) -> dict[int, int | None]:
    """Return for each line the index of the string around it, -1 for Python, None for a line with a string's edge."""
    places: dict[int, int | None] = {}
    start = 0
    for number, line in enumerate(lines, 1):
        end = start + len(line)
        touching = [index for index, span in enumerate(strings) if start <= span.end and span.start <= end]
        inside = [index for index in touching if strings[index].start < start and end < strings[index].end]
        places[number] = inside[0] if inside else None if touching else -1
        start = end + 1
    return places


def _runs(lines: Sequence[str], wanted: set[int], places: dict[int, int | None]) -> Iterator[tuple[int, int]]:
    """Yield the wanted lines as ranges that lie in Python or in one string, without blank lines at their ends."""
    run: list[int] = []
    for number in range(1, len(lines) + 2):
        is_wanted = number in wanted and places.get(number) is not None
        if run and (not is_wanted or places[number] != places[run[0]]):
            filled = [each for each in run if lines[each - 1].strip()]
            if filled:
                yield filled[0], filled[-1]
            run = []
        if is_wanted:
            run.append(number)
