"""Grounded instruction: markers around the code to improve, and the check that nothing else was changed.

What counts as code, and as a comment that may be added, is told in ``sources.py``.
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
    parse_source,
    read_source,
    unix,
)

BEGIN = "<<<IMPROVE BEGIN>>>"
END = "<<<IMPROVE END>>>"

# No reply may hold up the program; each bound is far above what an honest one needs.
_LONGEST = 50_000
_MOST_LINES = 4_000
_MOST_MARKS = 100
_MOST_NESTED = 3
_MOST_STEPS = 2_000_000

_SOME = rf"{ONE_MARKER}(?:[ \t]*{ONE_MARKER})*"
# A comment that holds nothing but markers goes as a whole; elsewhere only the marker's own text goes.
_REMOVED = re.compile(
    rf"(?:(?:\#[ \t]{{0,8}}){{1,4}}{_SOME}[ \t]*$|//{{1,4}}[ \t]{{0,8}}{_SOME}[ \t]*$"
    rf"|/\*{{1,4}}[ \t]{{0,8}}{_SOME}[ \t]*\*{{1,4}}/|{_SOME})[ \t]*",
    re.IGNORECASE,
)
_CLASS_NAME = re.compile(r"\bModelNew\b")
_TASK_FUNCTION = re.compile(r"def (get_inputs|get_init_inputs)\b")

_Opcodes = list[tuple[str, int, int, int, int]]


class _Mark(NamedTuple):
    """A marker: where it stands, and the string it is in (None: Python). Lost when it is no comment there."""

    line: int
    begins: bool
    string: int | None
    lost: bool


# -- the check ------------------------------------------------------------------------------------------------------


def violations(scaffold: str, parent_source: str) -> tuple[str, ...]:
    """The rules a scaffold breaks, each a sentence for the planner. None broken: the plan is grounded."""
    scaffold, parent_source = unix(scaffold), unix(parent_source)
    if sum(1 for _ in MARKER.finditer(scaffold)) > _MOST_MARKS:
        return (f"There are more than {_MOST_MARKS} markers; mark only the code that the advice is about.",)
    if _is_long(scaffold) or _is_long(parent_source):
        return (f"Sources of more than {_MOST_LINES} lines or {_LONGEST} characters are not checked.",)
    try:
        reading = parse_source(scaffold)
    except (tokenize.TokenError, SyntaxError) as error:
        return (f"The scaffold cannot be read as Python ({error.args[0]}); return the complete file.",)
    marks = list(_marks(scaffold, reading))
    return (*_misplaced(marks), *_unpaired(marks), *_changed(scaffold, parent_source))


def _marks(scaffold: str, reading: Reading) -> Iterator[_Mark]:
    for match in MARKER.finditer(scaffold):
        string, comment = _around(match, reading.strings), _around(match, reading.comments)
        line = scaffold.count("\n", 0, match.start()) + 1
        yield _Mark(line, "BEGIN" in match.group().upper(), string.start if string else None, comment is None)


def _around(match: re.Match[str], spans: Sequence[Span]) -> Span | None:
    index = bisect_right(spans, match.start(), key=lambda span: span.start) - 1
    return spans[index] if index >= 0 and match.end() <= spans[index].end else None


def _misplaced(marks: list[_Mark]) -> Iterator[str]:
    for mark in marks:
        name = BEGIN if mark.begins else END
        if mark.lost and mark.string is None:
            yield f"Line {mark.line}: the marker is not a comment; in Python write `# {name}`."
        elif mark.lost:
            yield f"Line {mark.line}: the marker is not a comment of the C++ it stands in; write `/* {name} */`."


def _unpaired(marks: list[_Mark]) -> Iterator[str]:
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


def _changed(scaffold: str, parent_source: str) -> Iterator[str]:
    """At most one sentence: the first piece of code that is not the parent's."""
    for ours, theirs in itertools.zip_longest(read_source(scaffold).pieces, read_source(parent_source).pieces):
        if ours is None or theirs is None or ours.text != theirs.text:
            has = f"`{_raw(scaffold, ours)}`" if ours else "nothing more"
            had = f"line {theirs.number} of the source reads `{_raw(parent_source, theirs)}`" if theirs else ""
            had = had or "the source has ended"
            yield f"Only comments may be added to the source: where {had}, the scaffold has {has}."
            return


def _raw(source: str, line: CodeLine) -> str:
    return source.split("\n")[line.number - 1].strip()


# -- removal --------------------------------------------------------------------------------------------------------


def remove_markers(source: str) -> str:
    """The source without any marker. Needs no valid source; what holds no marker is not touched."""
    if not MARKER.search(source):
        return source
    return "".join(_without_markers(line) if "<<<" in line else line for line in source.splitlines(keepends=True))


def _without_markers(line: str) -> str:
    body = line.rstrip("\r\n")
    ending = line[len(body) :]
    for _ in range(_MOST_NESTED):  # again, because taking one away may join the halves of another
        if not MARKER.search(body):
            return line
        body = _REMOVED.sub(_gap, body).rstrip()
        line = body + ending if body else ""
    return MARKER.sub("#", line)  # joins nothing


def _gap(match: re.Match[str]) -> str:
    """A blank where a comment was all that kept two words apart."""
    before, after = match.string[max(0, match.start() - 1) : match.start()], match.string[match.end() : match.end() + 1]
    parts_words = (before + after).replace("_", "a").isalnum() and bool(before and after)
    return " " if match.group().startswith("/*") and parts_words else ""


# -- how much of the change fell outside ----------------------------------------------------------------------------


def outside_share(parent_source: str, scaffold: str, child_source: str) -> float | None:
    """The share of changed lines outside the marked regions; None when no line changed or no region is marked.

    Lines taken away and lines added both count. What is added at a region's edge is inside. Not a change: comments,
    the class's name (Model or ModelNew), the task's input functions. An import that the region needs is outside.
    None also where it would take long to tell.
    """
    if any(map(_is_long, (parent_source, scaffold, child_source))):
        return None
    parent = [line.text for line in _comparable(parent_source)]
    opcodes = _opcodes(parent, [line.text for line in _comparable(child_source)])
    regions = _regions(scaffold, parent)
    covered = {line for first, last in regions for line in range(first, last)}
    inside = outside = 0.0
    for tag, start, end, child_start, child_end in opcodes or ():
        if tag == "equal":
            continue
        removed, added = end - start, child_end - child_start
        held = sum(line in covered for line in range(start, end))
        at_edge = any(first <= start <= last for first, last in regions)
        share = held / removed if removed else float(at_edge)  # what replaces lines is where those were
        inside += held + added * share
        outside += removed - held + added * (1 - share)
    return outside / (inside + outside) if regions and inside + outside else None


def _comparable(source: str) -> list[CodeLine]:
    """The lines of code without the task's functions, under one class name."""
    kept, skipping = [], False
    for number, text in code_lines(source):
        if text[0] not in " \t)]}":  # a new statement at the top level
            skipping = bool(_TASK_FUNCTION.match(text))
        if not skipping:
            kept.append(CodeLine(number, _CLASS_NAME.sub("Model", text)))
    return kept


def _regions(scaffold: str, parent: list[str]) -> list[tuple[int, int]]:
    """The marked regions as ranges of the parent's comparable lines, even where the scaffold is not quite grounded."""
    lines = _comparable(scaffold)
    numbers, opcodes = [line.number for line in lines], _opcodes([line.text for line in lines], parent)
    marks = list(itertools.islice(MARKER.finditer(unix(scaffold)), _MOST_MARKS + 1))
    if opcodes is None or len(marks) > _MOST_MARKS:
        return []
    found: list[tuple[int, int]] = []
    first: int | None = None
    for match in marks:
        number = match.string.count("\n", 0, match.start()) + 1
        if "BEGIN" in match.group().upper():
            first = bisect_left(numbers, number)
        elif first is not None:
            found.append((_moved(first, opcodes), _moved(bisect_right(numbers, number), opcodes)))
            first = None
    return found


def _moved(line: int, opcodes: _Opcodes) -> int:
    """Where a line of the first text is in the second."""
    for _, start, end, other_start, other_end in opcodes:
        if start <= line < end:
            return min(other_start + line - start, other_end)
    return opcodes[-1][4] if opcodes else 0


def _common(first: list[str], second: list[str]) -> int:
    return sum(1 for _ in itertools.takewhile(bool, map(operator.eq, first, second)))


def _opcodes(before: list[str], after: list[str]) -> _Opcodes | None:
    """How the one becomes the other; None where difflib might take long, as with many equal lines."""
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    first, second = before[head : len(before) - tail], after[head : len(after) - tail]
    counts = Counter(second)
    pairs = sum(counts[line] for line in first)
    if (len(first) + pairs) * min(len(first), len(second), pairs) > _MOST_STEPS:
        return None
    inner = difflib.SequenceMatcher(None, first, second, autojunk=False).get_opcodes()
    moved = [(tag, start + head, end + head, low + head, high + head) for tag, start, end, low, high in inner]
    last = ("equal", len(before) - tail, len(before), len(after) - tail, len(after))
    return [("equal", 0, head, 0, head), *moved, last]


def _is_long(source: str) -> bool:
    return len(source) > _LONGEST or len(unix(source).split("\n")) > _MOST_LINES
