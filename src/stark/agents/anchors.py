"""Grounded instruction: markers around the code to improve, and the check that nothing else was changed.

A candidate is Python whose triple-quoted strings may hold C++ or CUDA. Python is compared line by line without its
comments. C++ is compared as the compiler gets it (escapes read, an f-string's placeholders whole): what stands between
two gaps verbatim, a gap being blanks, line ends and comments that may be added. Whatever is in doubt is compared as it
is written. Not seen is what other code does with a string, such as putting half a line in front of it.
"""

from __future__ import annotations

import difflib
import functools
import io
import itertools
import operator
import re
import token
import tokenize
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

BEGIN = "<<<IMPROVE BEGIN>>>"
END = "<<<IMPROVE END>>>"

# No reply may hold up the program; each bound is far above what an honest one needs.
_LONGEST = 50_000
_MOST_LINES = 4_000
_MOST_MARKS = 100
_MOST_NESTED = 3
_MOST_STEPS = 2_000_000

_ONE = r"<<<[ \t]*IMPROVE[ \t_-]*(?:BEGIN|END)S?[ \t]*>>>"
_SOME = rf"{_ONE}(?:[ \t]*{_ONE})*"
_MARKER = re.compile(_ONE, re.IGNORECASE)
# A comment that holds nothing but markers goes as a whole; elsewhere only the marker's own text goes.
_REMOVED = re.compile(
    rf"(?:(?:\#[ \t]{{0,8}}){{1,4}}{_SOME}[ \t]*$|//{{1,4}}[ \t]{{0,8}}{_SOME}[ \t]*$"
    rf"|/\*{{1,4}}[ \t]{{0,8}}{_SOME}[ \t]*\*{{1,4}}/|{_SOME})[ \t]*",
    re.IGNORECASE,
)
_CPP = re.compile(
    r"""
      (?P<comment> (?: //(?:[^\n\\]|\\\n|\\)* | /\*[\s\S]*?\*/ ) (?P<ends_line>(?=[ \t]*(?:\\?\n|\Z)))? )
    | (?P<newline> \n ) | (?P<splice> \\\n ) | (?P<blank> [ \t\v\f]+ )
    | (?P<code> (?: (?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\([\s\S]*?\)(?P=fence)"   # a raw string
        | "(?:[^"\\\n]|\\[\s\S])*" | '(?:\\.[^'\n]{0,8}|[^'\\\n]{1,4})'
        | \d(?:'?\w)* | (?!(?:u8|[uUL])?R")\w+       # numbers have digit separators
        | [^\w\s"'/\\]+ | /(?![/*]) | \\(?!\n) )+ )
    | (?P<doubt> [\s\S] )                            # what is never closed, and odd blanks
    """,
    re.VERBOSE,
)
# Lines that not every compiler joins, or that join into the delimiter of a comment or a string.
_ODD = re.compile(r"""\\[ \t\v\f]+\n | \\\\\n | [/*\w]\\\n[/*"'\\] | \?\?/ | \0""", re.VERBOSE)
_LIKE_CPP = re.compile(r"^[ \t]*\#\w|;|\)\s*\{", re.MULTILINE)
_LIKE_PYTHON = re.compile(r"^[ \t]*(?:def \w+\(|import \w|from \S+ import )", re.MULTILINE)
_BRACES = re.compile(r"""\{\{ | \}\} | \{(?:[^{}\n"'\\]|"[^"\n\\]*"|'[^'\n\\]*')*\} | [{}]""", re.VERBOSE)
# Escapes that leave C++ as it is spelled, or that blanks may stand for; all others are in doubt.
_ESCAPE = re.compile(r"(?P<joint>(?<=[ \t])\\\n)|(?P<splice>(?<=[ \t])\\\\(?=\n))|(?P<same>\\\\(?=\w))|\\")
_PLACEHOLDER = "\u02ac"  # a letter, because it may be part of a name
_DOUBT = "\0"  # in no source
_OPENING = re.compile(r"([A-Za-z]*)(\"\"\"|''')")
_JOINT_BEFORE = re.compile(r"[+\"']=?[\s\\]*\Z")
_JOINT_AFTER = re.compile(r"[\s\\]*(?:\+|[A-Za-z]{0,2}[\"'])")
_STRING_STARTS = {getattr(token, name) for name in ("FSTRING_START", "TSTRING_START") if hasattr(token, name)}
_STRING_ENDS = {getattr(token, name) for name in ("FSTRING_END", "TSTRING_END") if hasattr(token, name)}
_CLASS_NAME = re.compile(r"\bModelNew\b")
_TASK_FUNCTION = re.compile(r"def (get_inputs|get_init_inputs)\b")

_Opcodes = list[tuple[str, int, int, int, int]]


class CodeLine(NamedTuple):
    """A line, or a piece of one, that is left when comments, blank lines and trailing white space are taken away."""

    number: int
    text: str


class _Span(NamedTuple):
    """A comment (no prefix), or the inside of a triple-quoted string, perhaps joined to another text."""

    start: int
    end: int
    prefix: str | None = None
    joined: bool = False


class _Reading(NamedTuple):
    """What counts of a source, the comments that do not, and the triple-quoted strings."""

    pieces: Sequence[CodeLine]
    comments: Sequence[_Span] = ()
    strings: Sequence[_Span] = ()


class _Mark(NamedTuple):
    """A marker: where it stands, and the string it is in (None: Python). Lost when it is no comment there."""

    line: int
    begins: bool
    string: int | None
    lost: bool


# -- the check ------------------------------------------------------------------------------------------------------


def violations(scaffold: str, parent_source: str) -> tuple[str, ...]:
    """The rules a scaffold breaks, each a sentence for the planner. None broken: the plan is grounded."""
    scaffold, parent_source = _unix(scaffold), _unix(parent_source)
    if sum(1 for _ in _MARKER.finditer(scaffold)) > _MOST_MARKS:
        return (f"There are more than {_MOST_MARKS} markers; mark only the code that the advice is about.",)
    if _is_long(scaffold) or _is_long(parent_source):
        return (f"Sources of more than {_MOST_LINES} lines or {_LONGEST} characters are not checked.",)
    try:
        reading = _read(scaffold)
    except (tokenize.TokenError, SyntaxError) as error:
        return (f"The scaffold cannot be read as Python ({error.args[0]}); return the complete file.",)
    marks = list(_marks(scaffold, reading))
    return (*_misplaced(marks), *_unpaired(marks), *_changed(scaffold, parent_source))


def _marks(scaffold: str, reading: _Reading) -> Iterator[_Mark]:
    for match in _MARKER.finditer(scaffold):
        string, comment = _around(match, reading.strings), _around(match, reading.comments)
        line = scaffold.count("\n", 0, match.start()) + 1
        yield _Mark(line, "BEGIN" in match.group().upper(), string.start if string else None, comment is None)


def _around(match: re.Match[str], spans: Sequence[_Span]) -> _Span | None:
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
    for ours, theirs in itertools.zip_longest(_reading(scaffold).pieces, _reading(parent_source).pieces):
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
    if not _MARKER.search(source):
        return source
    return "".join(_without_markers(line) if "<<<" in line else line for line in source.splitlines(keepends=True))


def _without_markers(line: str) -> str:
    body = line.rstrip("\r\n")
    ending = line[len(body) :]
    for _ in range(_MOST_NESTED):  # again, because taking one away may join the halves of another
        if not _MARKER.search(body):
            return line
        body = _REMOVED.sub(_gap, body).rstrip()
        line = body + ending if body else ""
    return _MARKER.sub("#", line)  # joins nothing


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
    marks = list(itertools.islice(_MARKER.finditer(_unix(scaffold)), _MOST_MARKS + 1))
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


# -- what of a source is code ---------------------------------------------------------------------------------------


def code_lines(source: str) -> list[CodeLine]:
    """The lines of code. A source that cannot be tokenized (a failed candidate) keeps its comments."""
    lines: dict[int, str] = {}
    for number, text in _reading(_unix(source)).pieces:
        lines[number] = lines.get(number, "") + text.replace("\n", " ")
    return [CodeLine(number, text.rstrip()) for number, text in sorted(lines.items()) if text.strip()]


def _reading(source: str) -> _Reading:
    try:
        return _read(source)
    except (tokenize.TokenError, SyntaxError):
        return _Reading([CodeLine(number, line) for number, line in enumerate(source.split("\n"), 1) if line.strip()])


@functools.lru_cache(maxsize=32)  # one attempt asks for the same few sources again and again
def _read(source: str) -> _Reading:
    """A TokenError or SyntaxError where this is not Python."""
    spans = _spans(source)
    pieces: list[tuple[int, str]] = []
    comments: list[_Span] = []
    end = 0
    for span in spans:
        pieces += _python_pieces(source[end : span.start], end)
        if span.prefix is None:
            comments.append(span)
        else:
            for start, stop, text in _string_pieces(source, span):
                if text is None:
                    comments.append(_Span(start, stop))
                else:
                    pieces.append((start, text))
        end = span.end
    pieces += _python_pieces(source[end:], end)
    starts = _line_starts(source)
    numbered = [CodeLine(bisect_right(starts, place), text) for place, text in pieces]
    return _Reading(numbered, comments, [span for span in spans if span.prefix is not None])


def _python_pieces(text: str, place: int) -> Iterator[tuple[int, str]]:
    continued = False
    for line in text.split("\n"):
        if continued or line.strip():  # a blank line after a backslash ends the statement
            yield place, line.rstrip()
        continued = line.endswith("\\")
        place += len(line) + 1


def _spans(source: str) -> list[_Span]:
    """Comments and triple-quoted strings in order."""
    starts = _line_starts(source)
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
            spans.append(_Span(start, end))
        elif item.type == token.STRING or item.type in _STRING_ENDS:
            start = start if item.type == token.STRING else opened
            if opening := _OPENING.match(source, start, end):
                joined = _JOINT_BEFORE.search(source[max(0, start - 99) : start]) or _JOINT_AFTER.match(source, end)
                spans.append(_Span(opening.end(), end - 3, opening[1].lower(), bool(joined)))
    return spans


def _line_starts(source: str) -> list[int]:
    return list(itertools.accumulate((len(line) + 1 for line in source.split("\n")), initial=0))


def _is_long(source: str) -> bool:
    return len(source) > _LONGEST or len(_unix(source).split("\n")) > _MOST_LINES


def _unix(source: str) -> str:
    return source.replace("\r\n", "\n").replace("\r", "\n")


# -- what of a string is code ---------------------------------------------------------------------------------------


def _string_pieces(source: str, span: _Span) -> Iterator[tuple[int, int, str | None]]:
    """Start, end and text; no text for a comment that does not count. The lines as they are if not surely C++."""
    text = source[span.start : span.end]
    masked = _masked(text, span.prefix or "")
    tokens = list(itertools.takewhile(lambda item: item.lastgroup != "doubt", _CPP.finditer(masked)))
    code = "".join(item.group() for item in tokens if item.lastgroup != "comment")
    is_clear = not text or (tokens and tokens[-1].end() == len(text) and not _ODD.search(masked))
    if is_clear and (not code.strip() or (_LIKE_CPP.search(code) and not _LIKE_PYTHON.search(code))):
        pieces = _cpp_pieces(tokens, text, span.joined)
    else:  # with the line end a line is like no piece of C++
        pieces = (
            (start, start, line + "\n") for start, line in zip(_line_starts(text), text.split("\n"), strict=False)
        )
    for start, end, shown in pieces:
        yield span.start + start, span.start + end, shown


def _masked(text: str, prefix: str) -> str:
    """The text as the compiler gets it, but as long as it is spelled."""
    if "f" in prefix or "t" in prefix:
        text = _BRACES.sub(_mask_braces, text)
    meant = {"joint": "  ", "splice": " \\", "same": "\\\\", None: _DOUBT}
    return text if "r" in prefix else _ESCAPE.sub(lambda match: meant[match.lastgroup], text)


def _mask_braces(match: re.Match[str]) -> str:
    braces = match.group()
    return braces if braces in ("{{", "}}") else _PLACEHOLDER * len(braces) if braces[1:] else _DOUBT


def _cpp_pieces(tokens: list[re.Match[str]], text: str, joined: bool) -> Iterator[tuple[int, int, str | None]]:
    """One gap is like another, but for the line ends of directives. Next to the quotes it is like none."""
    gap: set[str | None] = set()
    in_directive, begins_line, begins_row, before, end = joined, True, not joined, "", 0
    for item in tokens:
        if item.lastgroup == "comment" and _may_be_added(item, begins_row, before):
            gap.add("comment")
            yield *item.span(), None
        elif item.lastgroup in ("newline", "splice", "blank"):
            gap.add(item.lastgroup)
            begins_line |= item.lastgroup == "newline"
            begins_row |= item.lastgroup != "blank"
        else:
            space = _shown(gap, in_directive) if end or joined else ""
            is_code = item.lastgroup == "code"
            directive = is_code and begins_line and item.group().startswith(("#", "%:"))
            in_directive = directive or (in_directive and "newline" not in gap)
            start, end = item.span()
            yield start, end, space + "\n" * directive + text[start:end]
            gap, begins_line, begins_row, before = set(), begins_line and not is_code, False, item.group()[-1]
    if in_directive or joined:
        yield end, end, _shown(gap, True)


def _shown(gap: set[str | None], by_line: bool) -> str:
    if by_line and "newline" in gap:
        return "\n"
    return "\\\n" if gap == {"splice"} else " " if gap else ""


def _may_be_added(comment: re.Match[str], begins_row: bool, before: str) -> bool:
    """Surely a comment, to the compiler too, and one that takes no code with it."""
    text = comment.group()
    if _PLACEHOLDER in text or (text.startswith("//") and ("\n" in text or comment.end() == len(comment.string))):
        return False
    alone = begins_row and comment["ends_line"] is not None
    # No operator follows these in any language, so that `//` is not a division.
    return alone or before in (";", "{", "}", ",") or bool(_MARKER.search(text))
