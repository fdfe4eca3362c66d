"""One writer per run folder: a file lock that names its holder and ends with its process."""

from __future__ import annotations

import fcntl
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from stark.core.errors import StoreLocked

LOCK_NAME = "writer.lock"

_LOCK_TABLE = Path("/proc/locks")

_held: set[int] = set()


def _close_copies() -> None:
    """Close the copies of the locks in a forked child; they would outlive the writer."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_copies)


class WriterLock:
    """Held from creation to ``release``. Child processes do not inherit it."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(self._descriptor, folder)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, _describe_this_process().encode(), 0)
        except BaseException:
            os.close(self._descriptor)
            raise
        _held.add(self._descriptor)

    def release(self) -> None:
        """Let another process write. A second call does nothing. The file stays: removing it would be a race."""
        if self._descriptor in _held:
            _held.remove(self._descriptor)
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1


def refuse_if_held(folder: Path) -> None:
    """Raise StoreLocked if a process writes to the folder; change nothing there."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        _take(descriptor, folder)
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """True if a process of this machine writes to the folder. Takes no lock, so it never stops a writer."""
    try:
        inode = (folder / LOCK_NAME).stat().st_ino
        table = _LOCK_TABLE.read_text(encoding="ascii")
    except OSError:
        return False
    rows = (line.split() for line in table.splitlines())  # number: kind mode access process device:inode start end
    return any(row[1] == "FLOCK" and row[5].rpartition(":")[2] == str(inode) for row in rows)


def _take(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 1000, 0).decode("utf-8", "replace").strip() or "another process"
        raise StoreLocked(
            f"{folder} is being written to by {holder}.",
            "Wait until that process ends, or stop it. The run can be read meanwhile.",
        ) from error


def _describe_this_process() -> str:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return f"process {os.getpid()} on {socket.gethostname()} since {now}\n"
