"""The folder through which a host and its workers exchange files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path
from typing import IO

REQUESTS, WORKING, ANSWERS = "requests", "working", "answers"


CLAIMS = "asked"  # an empty file for each request, which its host keeps locked


STAGES = (REQUESTS, WORKING, ANSWERS)  # the way of a request


FOLDERS = (*STAGES, CLAIMS)


def write_atomically(path: Path, text: str) -> None:
    """Write a file that other processes see only when it is complete."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")  # machines may share a folder
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # an abandoned draft would take room on a full disk
            draft.unlink(missing_ok=True)
        raise


def try_lock(path: Path) -> IO[str] | None:
    """Return the file, open and locked until it is closed; None if it is gone or another process holds its lock."""
    with contextlib.ExitStack() as unless_locked, contextlib.suppress(FileNotFoundError, BlockingIOError):
        file = unless_locked.enter_context(_open(path))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists():  # another process may have removed it before we had the lock
            unless_locked.pop_all()
            return file
    return None


def _open(path: Path) -> IO[str]:
    """Open for writing if allowed: NFS locks no other files."""
    try:
        return path.open("r+", encoding="utf-8")
    except PermissionError:
        return path.open(encoding="utf-8")
