"""How this program is called, so that the commands it suggests can be typed as they are printed."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

NAME = "stark"


def command(*words: object) -> str:
    """A command of this program: by its bare name where that finds this very one, otherwise as it was called."""
    return shlex.join([*_called(Path(sys.argv[0])), *map(str, words)])


def _called(program: Path) -> list[str]:
    if program.name != NAME:  # a module, by `python -m`
        return [sys.executable, "-m", "stark.cli"]
    found = shutil.which(NAME)
    if found and program.exists() and Path(found).samefile(program):
        return [NAME]
    return [str(program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program)]
