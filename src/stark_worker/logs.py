"""What of an error a person or a model needs to see: short, and in the candidate's own lines. No torch."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

LOG_CHARACTERS = 4_000

_ERROR = re.compile(r"^\S+( |: )(fatal )?error:|undefined reference|cannot find -l")
_SHOWN_SOURCE = re.compile(r"^\s*\d*\s*\|")


def cut(text: str, limit: int = LOG_CHARACTERS) -> str:
    """The beginning and the end of a text; the middle of a longer one is left out and said to be."""
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
    keep = False
    for line in text.splitlines():
        keep = bool(_ERROR.search(line)) or (keep and bool(_SHOWN_SOURCE.match(line)))
        if keep:
            found.append(line)
    return "\n".join(found)[:LOG_CHARACTERS]


def _message(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception_only(error)).strip()
    except Exception as failure:  # noqa: BLE001 - __str__ of a candidate's exception is the candidate's code
        return f"{type(error).__name__} (its text cannot be shown: {type(failure).__name__})"


def _shorten_paths(text: str, source_file: Path) -> str:
    return text.replace(f"{source_file.parent}/", "")
