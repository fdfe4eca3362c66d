"""Formats commands of this program so that the user can type them as printed."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

PROGRAM = "stark"


def format_command(*words: object) -> str:
    """Return a command with the bare name if PATH finds this program, else with the name it was called by."""
    return shlex.join([*_program_words(Path(sys.argv[0])), *map(str, words)])


def _program_words(program: Path) -> list[str]:
    if program.name != PROGRAM:  # called by `python -m`
        return [sys.executable, "-m", "stark.cli"]
    found = shutil.which(PROGRAM)
    if found and program.exists() and Path(found).samefile(program):
        return [PROGRAM]
    return [str(program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program)]
