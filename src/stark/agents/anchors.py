"""Grounded instruction: markers around the code to improve, and the check that nothing else was changed.

A candidate is Python whose triple-quoted strings may hold C++ or CUDA. Every triple-quoted string is read as C++: a
docstring loses nothing by it except that what follows ``//`` in it counts as a comment.
"""

from __future__ import annotations

import difflib
import functools
import io
import itertools
import re
import token
import tokenize
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

BEGIN = "<<<IMPROVE BEGIN>>>"
END = "<<<IMPROVE END>>>"

_ONE = r"<<<[ \t]*IMPROVE[ \t_-]*(?:BEGIN|END)S?[ \t]*>>>"
_SOME = rf"{_ONE}(?:[ \t]*{_ONE})*"
_MARKER = re.compile(_ONE, re.IGNORECASE)
# A comment that holds nothing but markers goes as a whole; elsewhere only the marker's own text goes.
_REMOVED = re.compile(
    rf"(?:(?:\#[ \t]*)+{_SOME}[ \t]*$|//+[ \t]*{_SOME}[ \t]*$|/\*+[ \t]*{_SOME}[ \t]*\*+/|{_SOME})[ \t]*",
    re.IGNORECASE,
)
# What is never closed runs to the end (of the line, for a plain string), so that no text is scanned twice.
_CPP = re.compile(
    r"""
      (?P<comment> //(?:[^\n\\]|\\[\s\S])* | /\*[\s\S]*?(?:\*/|\Z) )
    | (?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\([\s\S]*?(?:\)(?P=fence)"|\Z)   # a raw string
    | "(?:[^"\\\n]|\\.)*"?
    | '(?:\\.[^'\n]{0,8}|[^'\\\n]{1,4})'     # short, because prose has apostrophes
    | \d(?:'?\w|\.)* | \w+                   # numbers, with digit separators, and names
    | <<<|>>>|<<=|>>=|\.\.\.|->\*?|\+\+|--|<<|>>|&&|\|\||::|\#\#|[-+*/%&|^!=<>]=
    | \n | \S
    """,
    re.VERBOSE,
)
_OPENING = re.compile(r"[A-Za-z]*(\"\"\"|''')")
_STRING_STARTS = {getattr(token, name) for name in ("FSTRING_START", "TSTRING_START") if hasattr(token, name)}
_STRING_ENDS = {getattr(token, name) for name in ("FSTRING_END", "TSTRING_END") if hasattr(token, name)}
_TASK_FUNCTION = re.compile(r"def (get_inputs|get_init_inputs)\b")


@dataclass(frozen=True)
class CodeLine:
    """A line that is left when comments, blank lines and trailing white space are taken away."""

    number: int
    text: str


@dataclass(frozen=True)
class _Span:
    """A Python comment, or the inside of a triple-quoted string."""

    start: int
    end: int
    is_comment: bool


@dataclass(frozen=True)
class _Mark:
    """A marker: where it stands, and the string it is in (None: Python). Lost when it is no comment there."""

    line: int
    begins: bool
    string: int | None
    lost: bool


# -- the check ------------------------------------------------------------------------------------------------------


def violations(scaffold: str, parent_source: str) -> tuple[str, ...]:
    """The rules a scaffold breaks, each a sentence for the planner. None broken: the plan is grounded."""
    scaffold = _unix(scaffold)
    try:
        spans = _spans(scaffold)
    except (tokenize.TokenError, SyntaxError) as error:
        return (f"The scaffold cannot be read as Python ({error.args[0]}); return the complete file.",)
    marks = list(_marks(scaffold, spans))
    found = [*_misplaced(marks), *_unpaired(marks), *_changed(scaffold, parent_source)]
    return tuple(found)


def _marks(scaffold: str, spans: tuple[_Span, ...]) -> Iterator[_Mark]:
    for match in _MARKER.finditer(scaffold):
        span = next((span for span in spans if span.start <= match.start() < span.end), None)
        inside = span is not None and not span.is_comment
        lost = span is None or (inside and not _in_cpp_comment(scaffold[span.start : span.end], match, span.start))
        begins = "BEGIN" in match.group().upper()
        string = span.start if span is not None and inside else None
        yield _Mark(scaffold.count("\n", 0, match.start()) + 1, begins, string, lost)


def _in_cpp_comment(text: str, match: re.Match[str], offset: int) -> bool:
    start, end = match.start() - offset, match.end() - offset
    return any(piece["comment"] and piece.start() <= start and end <= piece.end() for piece in _CPP.finditer(text))


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
    """At most one sentence: the first line of code that is not the parent's."""
    cleaned = remove_markers(scaffold)
    for ours, theirs in itertools.zip_longest(code_lines(cleaned), code_lines(parent_source)):
        if ours is None or theirs is None or ours.text != theirs.text:
            has = f"`{_raw(cleaned, ours)}`" if ours else "nothing more"
            had = f"line {theirs.number} of the source reads `{_raw(parent_source, theirs)}`" if theirs else ""
            had = had or "the source has ended"
            yield f"Only comments may be added to the source: where {had}, the scaffold has {has}."
            return


def _raw(source: str, line: CodeLine) -> str:
    return _unix(source).split("\n")[line.number - 1].strip()


# -- removal --------------------------------------------------------------------------------------------------------


def remove_markers(source: str) -> str:
    """The source without any marker. Needs no valid source; what holds no marker is not touched."""
    while _MARKER.search(source):  # again, because taking one away may join the halves of another
        source = "".join(_without_markers(line) for line in source.splitlines(keepends=True))
    return source


def _without_markers(line: str) -> str:
    body = line.rstrip("\r\n")
    if not _MARKER.search(body):
        return line
    kept = _REMOVED.sub(_gap, body).rstrip()
    return kept + line[len(body) :] if kept else ""


def _gap(match: re.Match[str]) -> str:
    """A blank where a comment was all that kept two words apart."""
    before, after = match.string[: match.start()][-1:], match.string[match.end() :][:1]
    parts_words = (before + after).replace("_", "a").isalnum() and bool(before and after)
    return " " if match.group().startswith("/*") and parts_words else ""


# -- how much of the change fell outside ----------------------------------------------------------------------------


def outside_share(parent_source: str, scaffold: str, child_source: str) -> float | None:
    """The share of changed lines outside the marked regions; None when no line changed or no region is marked.

    Lines taken away and lines added both count. What is added at a region's edge is inside. Not a change: comments,
    the class's name (Model or ModelNew), the task's input functions. An import that the region needs is outside.
    """
    parent, child = _comparable(parent_source), _comparable(child_source)
    regions = _regions(scaffold, parent)
    inside = outside = 0.0
    for tag, start, end, child_start, child_end in _opcodes(parent, child):
        if tag == "equal":
            continue
        removed, added = end - start, child_end - child_start
        held = sum(any(first <= line < last for first, last in regions) for line in range(start, end))
        at_edge = any(first <= start <= last for first, last in regions)
        share = held / removed if removed else float(at_edge)  # what replaces lines is where those were
        inside += held + added * share
        outside += removed - held + added * (1 - share)
    return outside / (inside + outside) if regions and inside + outside else None


def _comparable(source: str) -> list[str]:
    return [re.sub(r"\bModelNew\b", "Model", line.text) for line in _without_task_functions(code_lines(source))]


def _without_task_functions(lines: list[CodeLine]) -> list[CodeLine]:
    kept, skipping = [], False
    for line in lines:
        if line.text[0] not in " \t)]}":  # a new statement at the top level
            skipping = bool(_TASK_FUNCTION.match(line.text))
        if not skipping:
            kept.append(line)
    return kept


def _regions(scaffold: str, parent: list[str]) -> list[tuple[int, int]]:
    """The marked regions as ranges of the parent's comparable lines, even where the scaffold is not quite grounded."""
    lines = _without_task_functions(code_lines(_MARKER.sub("", scaffold)))
    numbers = [line.number for line in lines]
    opcodes = _opcodes([re.sub(r"\bModelNew\b", "Model", line.text) for line in lines], parent)
    found: list[tuple[int, int]] = []
    first: int | None = None
    for number, text in enumerate(_unix(scaffold).split("\n"), start=1):
        for match in _MARKER.finditer(text):
            if "BEGIN" in match.group().upper():
                first = bisect_left(numbers, number)
            elif first is not None:
                found.append((_moved(first, opcodes), _moved(bisect_right(numbers, number), opcodes)))
                first = None
    return found


def _moved(line: int, opcodes: list[tuple[str, int, int, int, int]]) -> int:
    """Where a line of the first text is in the second."""
    for _, start, end, other_start, other_end in opcodes:
        if start <= line < end:
            return min(other_start + line - start, other_end)
    return opcodes[-1][4] if opcodes else 0


def _opcodes(before: list[str], after: list[str]) -> list[tuple[str, int, int, int, int]]:
    return list(difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes())


# -- what of a source is code ---------------------------------------------------------------------------------------


def code_lines(source: str) -> list[CodeLine]:
    """The lines of code. C++ is compared token by token, so its lines are its tokens with one blank between them.

    A source that cannot be tokenized (a failed candidate) keeps its comments.
    """
    source = _unix(source)
    try:
        spans = _spans(source)
    except (tokenize.TokenError, SyntaxError):
        spans = ()
    pieces, end = [], 0
    for span in spans:
        pieces += [source[end : span.start], "" if span.is_comment else _cpp_tokens(source[span.start : span.end])]
        end = span.end
    lines = ("".join(pieces) + source[end:]).split("\n")
    return [CodeLine(number, line.rstrip()) for number, line in enumerate(lines, start=1) if line.strip()]


def _cpp_tokens(text: str) -> str:
    """The text with its comments gone and its lines where they were."""
    pieces = ("\n" * piece.group().count("\n") if piece["comment"] else piece.group() for piece in _CPP.finditer(text))
    return " ".join(piece for piece in pieces if piece)


@functools.lru_cache(maxsize=32)  # one attempt asks for the same few sources again and again
def _spans(source: str) -> tuple[_Span, ...]:
    """Comments and triple-quoted strings in order; a TokenError or SyntaxError where this is not Python."""
    starts = list(itertools.accumulate((len(line) + 1 for line in source.split("\n")), initial=0))
    spans: list[_Span] = []
    depth, opened = 0, 0
    for item in tokenize.generate_tokens(io.StringIO(source).readline):
        start, end = (starts[row - 1] + column for row, column in (item.start, item.end))
        if item.type == token.ERRORTOKEN:
            raise SyntaxError(f"unexpected {item.string!r} on line {item.start[0]}")
        if item.type in _STRING_STARTS:  # from Python 3.12 on an f-string is many tokens, and may hold others
            opened, depth = start if depth == 0 else opened, depth + 1
        elif item.type in _STRING_ENDS:
            depth -= 1
        if depth:
            continue
        if item.type == token.COMMENT:
            spans.append(_Span(start, end, is_comment=True))
        elif item.type == token.STRING or item.type in _STRING_ENDS:
            start = start if item.type == token.STRING else opened
            if opening := _OPENING.match(source, start, end):
                spans.append(_Span(opening.end(), end - 3, is_comment=False))
    return tuple(spans)


def _unix(source: str) -> str:
    return source.replace("\r\n", "\n").replace("\r", "\n")
