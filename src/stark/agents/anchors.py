"""Grounded instruction: markers around the code to improve, and the check that nothing else changed.

``source_lines.py`` defines what counts as code and which comments may be added.
"""

from __future__ import annotations

import difflib
import itertools
import operator
import re
import tokenize
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stark.agents.source_lines import (
    MARKER,
    ONE_MARKER,
    CodeLine,
    Reading,
    Span,
    code_lines,
    normalise_newlines,
    parse_source,
    read_source,
)

BEGIN = "<<<IMPROVE BEGIN>>>"
END = "<<<IMPROVE END>>>"

# Bounds against hostile replies, far above what an honest one needs.
_MAX_CHARACTERS = 50_000
_MAX_LINES = 4_000
_MAX_MARKERS = 100
_MAX_NESTING = 3
_MAX_DIFF_STEPS = 2_000_000

_MARKERS = rf"{ONE_MARKER}(?:[ \t]*{ONE_MARKER})*"
# A comment with nothing but markers is removed whole; otherwise only the marker is.
_REMOVED = re.compile(
    rf"(?:(?:\#[ \t]{{0,8}}){{1,4}}{_MARKERS}[ \t]*$|//{{1,4}}[ \t]{{0,8}}{_MARKERS}[ \t]*$"
    rf"|/\*{{1,4}}[ \t]{{0,8}}{_MARKERS}[ \t]*\*{{1,4}}/|{_MARKERS})[ \t]*",
    re.IGNORECASE,
)
_CLASS_NAME = re.compile(r"\bModelNew\b")
_TASK_FUNCTION = re.compile(r"def (get_inputs|get_init_inputs)\b")

_Opcodes = list[tuple[str, int, int, int, int]]


class _Mark(NamedTuple):
    """A marker: its line, and the string that holds it (None: Python). ``lost``: it is not in a comment."""

    line: int
    begins: bool
    string: int | None
    lost: bool


# -- the check ------------------------------------------------------------------------------------------------------


def find_violations(scaffold: str, parent_source: str) -> tuple[str, ...]:
    """Return the rules a scaffold breaks, each as a sentence for the planner. A plan without any is grounded."""
    scaffold, parent_source = normalise_newlines(scaffold), normalise_newlines(parent_source)
    if sum(1 for _ in MARKER.finditer(scaffold)) > _MAX_MARKERS:
        return (f"There are more than {_MAX_MARKERS} markers; mark only the code that the advice is about.",)
    if _is_long(scaffold) or _is_long(parent_source):
        return (f"Sources of more than {_MAX_LINES} lines or {_MAX_CHARACTERS} characters are not checked.",)
    try:
        reading = parse_source(scaffold)
    except (tokenize.TokenError, SyntaxError) as error:
        return (f"The scaffold cannot be read as Python ({error.args[0]}); return the complete file.",)
    marks = list(_find_marks(scaffold, reading))
    return (*_check_placement(marks), *_check_pairs(marks), *_check_unchanged(scaffold, parent_source))


def _find_marks(scaffold: str, reading: Reading) -> Iterator[_Mark]:
    for match in MARKER.finditer(scaffold):
        string, comment = _enclosing_span(match, reading.strings), _enclosing_span(match, reading.comments)
        line = scaffold.count("\n", 0, match.start()) + 1
        yield _Mark(line, "BEGIN" in match.group().upper(), string.start if string else None, comment is None)


def _enclosing_span(match: re.Match[str], spans: Sequence[Span]) -> Span | None:
    index = bisect_right(spans, match.start(), key=lambda span: span.start) - 1
    return spans[index] if index >= 0 and match.end() <= spans[index].end else None


def _check_placement(marks: list[_Mark]) -> Iterator[str]:
    for mark in marks:
        name = BEGIN if mark.begins else END
        if mark.lost and mark.string is None:
            yield f"Line {mark.line}: the marker is not a comment; in Python write `# {name}`."
        elif mark.lost:
            yield f"Line {mark.line}: the marker is not a comment of the C++ it stands in; write `/* {name} */`."


def _check_pairs(marks: list[_Mark]) -> Iterator[str]:
    if not marks:
        yield f"No region is marked; wrap the code to improve in `{BEGIN}` and `{END}`."
    opened: _Mark | None = None
    for mark in marks:
        if mark.begins and opened is not None:
            yield f"Line {mark.line}: a region begins inside the one that began on line {opened.line}; do not nest."
        elif mark.begins:
            opened = mark
        elif opened is None:
            yield f"Line {mark.line}: a region ends that never began."
        else:
            if mark.string != opened.string:
                yield f"Lines {opened.line} to {mark.line}: a region begins and ends in the same language and string."
            opened = None
    if opened is not None:
        yield f"Line {opened.line}: the region that begins here never ends."


def _check_unchanged(scaffold: str, parent_source: str) -> Iterator[str]:
    """Yield one sentence on the first piece of code that differs from the parent's."""
    for own, parent_piece in itertools.zip_longest(read_source(scaffold).pieces, read_source(parent_source).pieces):
        if own is None or parent_piece is None or own.text != parent_piece.text:
            found = f"`{_source_line(scaffold, own)}`" if own else "nothing more"
            expected = "the source has ended"
            if parent_piece:
                line = _source_line(parent_source, parent_piece)
                expected = f"line {parent_piece.number} of the source reads `{line}`"
            yield f"Only comments may be added to the source: where {expected}, the scaffold has {found}."
            return


def _source_line(source: str, line: CodeLine) -> str:
    return source.split("\n")[line.number - 1].strip()


# -- removal --------------------------------------------------------------------------------------------------------


def remove_markers(source: str) -> str:
    """Return the source without markers. It need not be valid; a source without markers is unchanged."""
    if not MARKER.search(source):
        return source
    return "".join(_strip_markers(line) if "<<<" in line else line for line in source.splitlines(keepends=True))


def _strip_markers(line: str) -> str:
    body = line.rstrip("\r\n")
    ending = line[len(body) :]
    for _ in range(_MAX_NESTING):  # removing one marker may join the halves of another
        if not MARKER.search(body):
            return line
        body = _REMOVED.sub(_replacement, body).rstrip()
        line = body + ending if body else ""
    return MARKER.sub("#", line)  # joins nothing


def _replacement(match: re.Match[str]) -> str:
    """A blank if the comment separated two words."""
    before, after = match.string[max(0, match.start() - 1) : match.start()], match.string[match.end() : match.end() + 1]
    parts_words = (before + after).replace("_", "a").isalnum() and bool(before and after)
    return " " if match.group().startswith("/*") and parts_words else ""


# -- changes outside the regions ------------------------------------------------------------------------------------


def measure_outside_share(parent_source: str, scaffold: str, child_source: str) -> float | None:
    """Share of changed lines outside the marked regions; None if no line changed or no region is marked.

    Removed and added lines both count. Lines added at a region's edge are inside. Comments, the class's name and the
    task's input functions are no changes. An import that the region needs is outside. None also if the comparison
    would take too long.
    """
    if any(map(_is_long, (parent_source, scaffold, child_source))):
        return None
    parent = [line.text for line in _comparable_lines(parent_source)]
    opcodes = _opcodes(parent, [line.text for line in _comparable_lines(child_source)])
    regions = _find_regions(scaffold, parent)
    covered = {line for first, last in regions for line in range(first, last)}
    inside = outside = 0.0
    for tag, start, end, child_start, child_end in opcodes or ():
        if tag == "equal":
            continue
        removed, added = end - start, child_end - child_start
        held = sum(line in covered for line in range(start, end))
        at_edge = any(first <= start <= last for first, last in regions)
        share = held / removed if removed else float(at_edge)  # a replacement is where the replaced lines were
        inside += held + added * share
        outside += removed - held + added * (1 - share)
    return outside / (inside + outside) if regions and inside + outside else None


def _comparable_lines(source: str) -> list[CodeLine]:
    """The lines of code without the task's functions, under one class name."""
    kept, skipping = [], False
    for number, text in code_lines(source):
        if text[0] not in " \t)]}":  # a new statement at the top level
            skipping = bool(_TASK_FUNCTION.match(text))
        if not skipping:
            kept.append(CodeLine(number, _CLASS_NAME.sub("Model", text)))
    return kept


def _find_regions(scaffold: str, parent: list[str]) -> list[tuple[int, int]]:
    """The marked regions as ranges of the parent's comparable lines, even if the scaffold is not grounded."""
    lines = _comparable_lines(scaffold)
    numbers, opcodes = [line.number for line in lines], _opcodes([line.text for line in lines], parent)
    marks = list(itertools.islice(MARKER.finditer(normalise_newlines(scaffold)), _MAX_MARKERS + 1))
    if opcodes is None or len(marks) > _MAX_MARKERS:
        return []
    found: list[tuple[int, int]] = []
    first: int | None = None
    for match in marks:
        number = match.string.count("\n", 0, match.start()) + 1
        if "BEGIN" in match.group().upper():
            first = bisect_left(numbers, number)
        elif first is not None:
            found.append((_map_line(first, opcodes), _map_line(bisect_right(numbers, number), opcodes)))
            first = None
    return found


def _map_line(line: int, opcodes: _Opcodes) -> int:
    """Map a line of the first text to the second."""
    for _, start, end, other_start, other_end in opcodes:
        if start <= line < end:
            return min(other_start + line - start, other_end)
    return opcodes[-1][4] if opcodes else 0


def _common_prefix(first: list[str], second: list[str]) -> int:
    return sum(1 for _ in itertools.takewhile(bool, map(operator.eq, first, second)))


def _opcodes(before: list[str], after: list[str]) -> _Opcodes | None:
    """The edits from one text to the other; None if difflib might take long, as with many equal lines."""
    head = _common_prefix(before, after)
    tail = _common_prefix(before[head:][::-1], after[head:][::-1])
    first, second = before[head : len(before) - tail], after[head : len(after) - tail]
    counts = Counter(second)
    pairs = sum(counts[line] for line in first)
    if (len(first) + pairs) * min(len(first), len(second), pairs) > _MAX_DIFF_STEPS:
        return None
    inner = difflib.SequenceMatcher(None, first, second, autojunk=False).get_opcodes()
    moved = [(tag, start + head, end + head, low + head, high + head) for tag, start, end, low, high in inner]
    last = ("equal", len(before) - tail, len(before), len(after) - tail, len(after))
    return [("equal", 0, head, 0, head), *moved, last]


def _is_long(source: str) -> bool:
    return len(source) > _MAX_CHARACTERS or len(normalise_newlines(source).split("\n")) > _MAX_LINES
