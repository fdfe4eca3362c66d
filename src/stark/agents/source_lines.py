"""Finds the code in a candidate's source: Python without comments, and C++ or CUDA in triple-quoted strings.

Python is read line by line. C++ is read as the compiler gets it, with escapes resolved and placeholders of f-strings
whole. Pieces of C++ are separated by gaps: blanks, line ends and comments that may be added. Doubtful text counts as
code. Later changes to a string, such as a prefix joined to it, are not seen.
"""

from __future__ import annotations

import functools
import io
import itertools
import re
import token
import tokenize
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

ONE_MARKER = r"<<<[ \t]*IMPROVE[ \t_-]*(?:BEGIN|END)S?[ \t]*>>>"
MARKER = re.compile(ONE_MARKER, re.IGNORECASE)
_CPP = re.compile(
    r"""
      (?P<comment> (?: //(?:[^\n\\]|\\\n|\\)* | /\*[\s\S]*?\*/ ) (?P<ends_line>(?=[ \t]*(?:\\?\n|\Z)))? )
    | (?P<newline> \n ) | (?P<splice> \\\n ) | (?P<blank> [ \t\v\f]+ )
    | (?P<code> (?: (?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\([\s\S]*?\)(?P=fence)"   # a raw string
        | "(?:[^"\\\n]|\\[\s\S])*" | '(?:\\.[^'\n]{0,8}|[^'\\\n]{1,4})'
        | \d(?:'?\w)* | (?!(?:u8|[uUL])?R")\w+       # numbers have digit separators
        | [^\w\s"'/\\]+ | /(?![/*]) | \\(?!\n) )+ )
    | (?P<doubt> [\s\S] )                            # unclosed text and odd blanks
    """,
    re.VERBOSE,
)
# Lines that not every compiler joins, or that join into the delimiter of a comment or a string.
_ODD_JOINTS = re.compile(r"""\\[ \t\v\f]+\n | \\\\\n | [/*\w]\\\n[/*"'\\] | \?\?/ | \0""", re.VERBOSE)
_LIKE_CPP = re.compile(r"^[ \t]*\#\w|;|\)\s*\{", re.MULTILINE)
_LIKE_PYTHON = re.compile(r"^[ \t]*(?:def \w+\(|import \w|from \S+ import )", re.MULTILINE)
_BRACES = re.compile(r"""\{\{ | \}\} | \{(?:[^{}\n"'\\]|"[^"\n\\]*"|'[^'\n\\]*')*\} | [{}]""", re.VERBOSE)
# Escapes that do not change the C++, or that blanks may stand for; all others are doubtful.
_ESCAPE = re.compile(r"(?P<joint>(?<=[ \t])\\\n)|(?P<splice>(?<=[ \t])\\\\(?=\n))|(?P<same>\\\\(?=\w))|\\")
_PLACEHOLDER = "\u02ac"  # a letter, because it may be part of a name
_DOUBT = "\0"  # in no source
_OPENING = re.compile(r"([A-Za-z]*)(\"\"\"|''')")
_JOINT_BEFORE = re.compile(r"[+\"']=?[\s\\]*\Z")
_JOINT_AFTER = re.compile(r"[\s\\]*(?:\+|[A-Za-z]{0,2}[\"'])")
_STRING_STARTS = {getattr(token, name) for name in ("FSTRING_START", "TSTRING_START") if hasattr(token, name)}
_STRING_ENDS = {getattr(token, name) for name in ("FSTRING_END", "TSTRING_END") if hasattr(token, name)}


class CodeLine(NamedTuple):
    """A line, or a piece of one, without comments, blank lines and trailing white space."""

    number: int
    text: str


class Span(NamedTuple):
    """A comment (no prefix), or the inside of a triple-quoted string. ``joined``: another text is next to it."""

    start: int
    end: int
    prefix: str | None = None
    joined: bool = False


class Reading(NamedTuple):
    """The code of a source, its comments and its triple-quoted strings."""

    pieces: Sequence[CodeLine]
    comments: Sequence[Span] = ()
    strings: Sequence[Span] = ()


# -- Python ---------------------------------------------------------------------------------------------------------


def code_lines(source: str) -> list[CodeLine]:
    """The lines of code. A source that cannot be tokenized keeps its comments."""
    lines: dict[int, str] = {}
    for number, text in read_source(normalise_newlines(source)).pieces:
        lines[number] = lines.get(number, "") + text.replace("\n", " ")
    return [CodeLine(number, text.rstrip()) for number, text in sorted(lines.items()) if text.strip()]


def read_source(source: str) -> Reading:
    """Split a source into code, comments and strings; a source that is no Python is all code."""
    try:
        return parse_source(source)
    except (tokenize.TokenError, SyntaxError):
        return Reading([CodeLine(number, line) for number, line in enumerate(source.split("\n"), 1) if line.strip()])


@functools.lru_cache(maxsize=32)  # one attempt reads the same few sources repeatedly
def parse_source(source: str) -> Reading:
    """Split a source; raise TokenError or SyntaxError if it is no Python."""
    spans = _find_spans(source)
    pieces: list[tuple[int, str]] = []
    comments: list[Span] = []
    end = 0
    for span in spans:
        pieces += _python_pieces(source[end : span.start], end)
        if span.prefix is None:
            comments.append(span)
        else:
            for start, stop, text in _string_pieces(source, span):
                if text is None:
                    comments.append(Span(start, stop))
                else:
                    pieces.append((start, text))
        end = span.end
    pieces += _python_pieces(source[end:], end)
    starts = find_line_starts(source)
    numbered = [CodeLine(bisect_right(starts, place), text) for place, text in pieces]
    return Reading(numbered, comments, [span for span in spans if span.prefix is not None])


def _python_pieces(text: str, place: int) -> Iterator[tuple[int, str]]:
    continued = False
    for line in text.split("\n"):
        if continued or line.strip():  # a blank line after a backslash ends the statement
            yield place, line.rstrip()
        continued = line.endswith("\\")
        place += len(line) + 1


def _find_spans(source: str) -> list[Span]:
    """Comments and triple-quoted strings in order."""
    starts = find_line_starts(source)
    spans: list[Span] = []
    depth, opened = 0, 0
    for item in tokenize.generate_tokens(io.StringIO(source).readline):
        start, end = (starts[row - 1] + column for row, column in (item.start, item.end))
        if item.type == token.ERRORTOKEN:
            raise SyntaxError(f"unexpected {item.string!r} on line {item.start[0]}")
        if item.type in _STRING_STARTS:  # since Python 3.12 an f-string is many tokens and may be nested
            opened, depth = start if depth == 0 else opened, depth + 1
        elif item.type in _STRING_ENDS:
            depth -= 1
        if depth:
            continue
        if item.type == token.COMMENT:
            spans.append(Span(start, end))
        elif item.type == token.STRING or item.type in _STRING_ENDS:
            start = start if item.type == token.STRING else opened
            if opening := _OPENING.match(source, start, end):
                joined = _JOINT_BEFORE.search(source[max(0, start - 99) : start]) or _JOINT_AFTER.match(source, end)
                spans.append(Span(opening.end(), end - 3, opening[1].lower(), bool(joined)))
    return spans


def find_line_starts(source: str) -> list[int]:
    return list(itertools.accumulate((len(line) + 1 for line in source.split("\n")), initial=0))


def normalise_newlines(source: str) -> str:
    return source.replace("\r\n", "\n").replace("\r", "\n")


# -- C++ in strings -------------------------------------------------------------------------------------------------


def _string_pieces(source: str, span: Span) -> Iterator[tuple[int, int, str | None]]:
    """Yield start, end and text; no text for comments. A string that may not be C++ is yielded line by line."""
    text = source[span.start : span.end]
    masked = _mask(text, span.prefix or "")
    tokens = list(itertools.takewhile(lambda item: item.lastgroup != "doubt", _CPP.finditer(masked)))
    code = "".join(item.group() for item in tokens if item.lastgroup != "comment")
    is_clear = not text or (tokens and tokens[-1].end() == len(text) and not _ODD_JOINTS.search(masked))
    if is_clear and (not code.strip() or (_LIKE_CPP.search(code) and not _LIKE_PYTHON.search(code))):
        pieces = _cpp_pieces(tokens, text, span.joined)
    else:  # the line end makes it differ from any piece of C++
        lines = zip(find_line_starts(text), text.split("\n"), strict=False)
        pieces = ((start, start, line + "\n") for start, line in lines)
    for start, end, shown in pieces:
        yield span.start + start, span.start + end, shown


def _mask(text: str, prefix: str) -> str:
    """The text as the compiler gets it, with every character at its place."""
    if "f" in prefix or "t" in prefix:
        text = _BRACES.sub(_mask_braces, text)
    meant = {"joint": "  ", "splice": " \\", "same": "\\\\", None: _DOUBT}
    return text if "r" in prefix else _ESCAPE.sub(lambda match: meant[match.lastgroup], text)


def _mask_braces(match: re.Match[str]) -> str:
    braces = match.group()
    return braces if braces in ("{{", "}}") else _PLACEHOLDER * len(braces) if braces[1:] else _DOUBT


def _cpp_pieces(tokens: list[re.Match[str]], text: str, joined: bool) -> Iterator[tuple[int, int, str | None]]:
    """Yield the pieces between gaps. All gaps are equal, except line ends of directives; gaps at the quotes vanish."""
    gap: set[str | None] = set()
    in_directive, begins_line, begins_row, before, end = joined, True, not joined, "", 0
    for item in tokens:
        if item.lastgroup == "comment" and _is_removable(item, begins_row, before):
            gap.add("comment")
            yield *item.span(), None
        elif item.lastgroup in ("newline", "splice", "blank"):
            gap.add(item.lastgroup)
            begins_line |= item.lastgroup == "newline"
            begins_row |= item.lastgroup != "blank"
        else:
            space = _format_gap(gap, in_directive) if end or joined else ""
            is_code = item.lastgroup == "code"
            directive = is_code and begins_line and item.group().startswith(("#", "%:"))
            in_directive = directive or (in_directive and "newline" not in gap)
            start, end = item.span()
            yield start, end, space + "\n" * directive + text[start:end]
            gap, begins_line, begins_row, before = set(), begins_line and not is_code, False, item.group()[-1]
    if in_directive or joined:
        yield end, end, _format_gap(gap, True)


def _format_gap(gap: set[str | None], by_line: bool) -> str:
    if by_line and "newline" in gap:
        return "\n"
    return "\\\n" if gap == {"splice"} else " " if gap else ""


def _is_removable(comment: re.Match[str], begins_row: bool, before: str) -> bool:
    """True for a comment that the compiler also reads as one and that hides no code."""
    text = comment.group()
    if _PLACEHOLDER in text or (text.startswith("//") and ("\n" in text or comment.end() == len(comment.string))):
        return False
    alone = begins_row and comment["ends_line"] is not None
    # No operator follows these in any language, so `//` is no division.
    return alone or before in (";", "{", "}", ",") or bool(MARKER.search(text))
