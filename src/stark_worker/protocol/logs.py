"""What of an error a person or a model needs to see: short, and in the candidate's own lines. No torch."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from stark_worker.protocol.request import Limits

LOG_CHARACTERS = 4_000


ERRORS = 10


_ERROR = re.compile(r"^\S+( |: )(fatal )?error\s*:|undefined reference|cannot find -l")


_SHOWN_SOURCE = re.compile(r"^\s*\d*\s*\||^ {4,}\S|^ *\^$")  # as g++ and as nvcc show it


_SOURCE_FILE = re.compile(r"(?:(?<=\s)|^)(?:/\S*/)?(main\.cpp|cuda\.cu)([:(])(\d+)")


_GENERATED = re.compile(r"\bstark_light::")


def cut(text: str, limit: int = LOG_CHARACTERS) -> str:
    """The beginning and the end of a text; the middle of a longer one is left out and said to be."""
    text = text.encode("utf-8", "replace").decode("utf-8")  # half a character pair can be neither sent nor printed
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def describe(error: BaseException, source_file: Path) -> str:
    """An exception as a short log: compiler errors with their lines, or the frames of the candidate's own file."""
    message = _message(error)
    if "Error building extension" in message and (compiler := compiler_errors(message)):
        return _shorten_paths(f"The extension does not compile.\n{compiler}", source_file)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(source_file)]
    lines = "".join(traceback.format_list(frames))
    return cut(_shorten_paths(f"{lines}{message}", source_file))


def compiler_errors(text: str) -> str:
    """The first errors a compiler or linker reported, each with the source lines shown below it; "" if there are none.

    Warnings, notes and the command line only hide the cause, and late errors mostly follow from the first.
    """
    found: list[str] = []
    keep, errors = False, 0
    for line in text.splitlines():
        error = bool(_ERROR.search(line))
        errors += error
        keep = error or (keep and bool(_SHOWN_SOURCE.match(line)))
        if keep and errors <= ERRORS:
            found.append(line)
    return "\n".join(found)[:LOG_CHARACTERS]


def messages(errors: str) -> str:
    """Of compiler errors what the compiler says, without the lines it shows."""
    return "\n".join(line for line in errors.splitlines() if _ERROR.search(line))


def in_candidate_lines(text: str, shifts: dict[str, int]) -> str:
    """Compiler output with the candidate's own line numbers; ``shifts`` are the lines put before its files."""

    def own(found: re.Match[str]) -> str:
        file, border, line = found.groups()
        return f"{file}{border}{max(int(line) - shifts.get(file, 0), 1)}"

    return _GENERATED.sub("at::", _SOURCE_FILE.sub(own, text))


def _message(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception_only(error)).strip()
    except Exception as failure:  # noqa: BLE001 - __str__ of a candidate's exception is the candidate's code
        return f"{type(error).__name__} (its text cannot be shown: {type(failure).__name__})"


def _shorten_paths(text: str, source_file: Path) -> str:
    return text.replace(f"{source_file.parent}/", "")


CALLED = ("launched", "done", "copied", "looked")  # what it says of a call


def too_slow(did: str, limits: Limits) -> str:
    """What is said of a candidate that was to say this, with the deadline it missed as its setting is called."""
    late = "The candidate did not finish in time"
    if did == "loaded":
        return f"{late}: it has {limits.build_s:g} s to be compiled and loaded (evaluation.build_s)."
    if did in CALLED:
        return f"{late}: all its calls together have {limits.run_s:g} s (evaluation.run_s)."
    return f"{late}."
