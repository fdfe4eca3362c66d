"""Shortens error output to what a reader needs, in the line numbers of the candidate's own source."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from stark_worker.protocol.request import Limits

MAX_LOG_CHARACTERS = 4_000


MAX_ERRORS = 10


_ERROR = re.compile(r"^\S+( |: )(fatal )?error\s*:|undefined reference|cannot find -l")


_SOURCE_LINE = re.compile(r"^\s*\d*\s*\||^ {4,}\S|^ *\^$")  # in the layouts of g++ and nvcc


_SOURCE_FILE = re.compile(r"(?:(?<=\s)|^)(?:/\S*/)?(main\.cpp|cuda\.cu)([:(])(\d+)")


_GENERATED = re.compile(r"\bstark_light::")


def cut(text: str, limit: int = MAX_LOG_CHARACTERS) -> str:
    """Return the text; of a long one the beginning, a note on what is left out, and the end."""
    text = text.encode("utf-8", "replace").decode("utf-8")  # half a character pair can be neither sent nor printed
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def describe(error: BaseException, source_file: Path) -> str:
    """Return an exception as a short log: compiler errors, or the frames of the candidate's own file."""
    message = _message(error)
    if "Error building extension" in message and (compiler := compiler_errors(message)):
        return _shorten_paths(f"The extension does not compile.\n{compiler}", source_file)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(source_file)]
    lines = "".join(traceback.format_list(frames))
    return cut(_shorten_paths(f"{lines}{message}", source_file))


def compiler_errors(text: str) -> str:
    """Return the first errors of a compiler or linker, each with the source lines shown below it; "" if there are none.

    Warnings, notes and the command line hide the cause. Late errors mostly follow from the first.
    """
    found: list[str] = []
    keep, errors = False, 0
    for line in text.splitlines():
        error = bool(_ERROR.search(line))
        errors += error
        keep = error or (keep and bool(_SOURCE_LINE.match(line)))
        if keep and errors <= MAX_ERRORS:
            found.append(line)
    return "\n".join(found)[:MAX_LOG_CHARACTERS]


def error_messages(errors: str) -> str:
    """Return the messages of compiler errors without the source lines below them."""
    return "\n".join(line for line in errors.splitlines() if _ERROR.search(line))


def map_to_candidate_lines(text: str, shifts: dict[str, int]) -> str:
    """Put the candidate's own line numbers into compiler output; ``shifts`` counts the lines put before each file."""

    def shift_back(found: re.Match[str]) -> str:
        file, separator, line = found.groups()
        return f"{file}{separator}{max(int(line) - shifts.get(file, 0), 1)}"

    return _GENERATED.sub("at::", _SOURCE_FILE.sub(shift_back, text))


def _message(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception_only(error)).strip()
    except Exception as failure:  # noqa: BLE001 - __str__ of a candidate's exception is the candidate's code
        return f"{type(error).__name__} (its text cannot be shown: {type(failure).__name__})"


def _shorten_paths(text: str, source_file: Path) -> str:
    return text.replace(f"{source_file.parent}/", "")


_CALL_REPLIES = ("launched", "done", "waited")  # the candidate's messages about a call


def describe_timeout(did: str, limits: Limits) -> str:
    """Return the log of a candidate that did not send this message in time, with the name of the setting."""
    late = "The candidate did not finish in time"
    if did == "loaded":
        return f"{late}: it has {limits.build_s:g} s to be compiled and loaded (evaluation.build_s)."
    if did in _CALL_REPLIES:
        return f"{late}: all its calls together have {limits.run_s:g} s (evaluation.run_s)."
    return f"{late}."
