"""TODO."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path
from typing import IO

ASKED, ANSWERS = "asked", "answers"


WAY = ("requests", "working", ANSWERS)  # of a request, in this order


PARTS = (*WAY, ASKED)


def write_whole(path: Path, text: str) -> None:
    """Put a file where it can be seen only when it is complete."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")  # machines may share a folder
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # a full disk has no room for drafts that nobody finishes
            draft.unlink(missing_ok=True)
        raise


def lock(path: Path) -> IO[str] | None:
    """The file, open and locked until it is closed; None when it is gone or somebody else has it."""
    with contextlib.ExitStack() as unless_locked, contextlib.suppress(FileNotFoundError, BlockingIOError):
        file = unless_locked.enter_context(_open(path))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists():  # not done with by another between our look and our lock
            unless_locked.pop_all()
            return file
    return None


def _open(path: Path) -> IO[str]:
    """For writing where we may: on NFS nothing else can be locked."""
    try:
        return path.open("r+", encoding="utf-8")
    except PermissionError:
        return path.open(encoding="utf-8")
