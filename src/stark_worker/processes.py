"""Process trees on Linux: what a process owes its parent, and how to end everything it started. No torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

from stark_worker.faults import MachineryFault

END_S = 5.0

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36


def die_with(parent: int) -> None:
    """End this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def be_called(name: str) -> None:
    """What lists of processes show, in place of the name of the program all of them were forked from."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def adopt_orphans() -> None:
    """Become the parent of whatever a descendant leaves behind when it ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory(hidden: bool = True) -> None:
    """Whether other processes of the same user are kept from reading this one's memory and environment."""
    _prctl(_PR_SET_DUMPABLE, int(not hidden))


def kill_descendants() -> None:
    """Kill whatever descends from this process, which has to have adopted orphans, until nobody is left."""
    deadline = time.monotonic() + END_S
    while (found := _descendants()) and time.monotonic() < deadline:
        for order in (signal.SIGSTOP, signal.SIGKILL):  # who forks faster than one can kill is stopped first
            for process in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, order)
        reap()


def reap() -> None:
    """Take note of the children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _descendants() -> list[int]:
    """Read off every process's own entry: ready-made lists are missing in some kernels."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2]
                parents[int(entry.name)] = int(after_name.split()[1])
    found: list[int] = []
    generation = {os.getpid()}
    while generation := {process for process, parent in parents.items() if parent in generation}:
        found += generation
    return found


def _prctl(option: int, value: int | ctypes.c_char_p) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise MachineryFault(f"prctl({option}) failed: {os.strerror(ctypes.get_errno())}; Linux 5.3 or newer is needed")
