"""Process trees on Linux: what a process owes its parent, and how to end everything it started. No torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from stark_worker.protocol.errors import MachineryFault

END_S = 5.0
FIRST = -10  # others have a tenth of a core that both want, and whoever has to end us still gets to it
TICKS = os.sysconf("SC_CLK_TCK")

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36


def die_with(parent: int) -> None:
    """End this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def be_called(name: str) -> None:
    """What lists of processes show, in place of the name of the program all of them were forked from."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def go_first() -> None:
    """Have others on this machine wait for us and for all we start, where that is permitted: as root, mostly.

    What is timed takes longer while others compute, and of two processes one by far more than the other: its threads
    may have to share a core, and wait for each other there. Sessions, of which one says so for itself, share a machine
    as equals otherwise, whatever their processes are among themselves.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)
    with contextlib.suppress(OSError):  # not in every kernel
        Path("/proc/self/autogroup").write_text(str(FIRST))


def adopt_orphans() -> None:
    """Become the parent of whatever a descendant leaves behind when it ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory(hidden: bool = True) -> None:
    """Whether other processes of the same user are kept from reading this one's memory and environment."""
    _prctl(_PR_SET_DUMPABLE, int(not hidden))


def kill_descendants() -> None:
    """Kill whatever descends from this process, which has to have adopted orphans, until nobody is left."""
    deadline = time.monotonic() + END_S
    while (found := descendants(os.getpid())) and time.monotonic() < deadline:
        for order in (signal.SIGSTOP, signal.SIGKILL):  # who forks faster than one can kill is stopped first
            signal_all(found, order)
        reap()


def stop_descendants(ancestor: int) -> set[int]:
    """Stop whatever descends from a process that adopts orphans; who that is, so that they can be told to go on.

    Each is stopped before its own children are looked for, so that there are no more of them afterwards.
    """
    stopped: set[int] = set()
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):  # not in every kernel
        while more := set(descendants(ancestor)) - stopped:
            signal_all(more, signal.SIGSTOP)
            stopped |= more
        return stopped
    waiting = [ancestor]
    while waiting:
        if more := _children(waiting[-1]) - stopped:
            signal_all(more, signal.SIGSTOP)
            stopped |= more
            waiting += more
        else:
            waiting.pop()
    return stopped


def signal_all(processes: Iterable[int], order: signal.Signals) -> None:
    """Send a signal to those of them that are still there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, order)


def reap() -> None:
    """Take note of the children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Process(NamedTuple):
    """What a list of processes says of one; in the state Z it has ended and nobody took note yet. ``computed_s`` is of
    all its threads, and of those it started that are gone.
    """

    parent: int
    name: str
    state: str
    computed_s: float


def descendants(ancestor: int) -> dict[int, Process]:
    """All processes below one, by number. Read off every entry, which takes long: nobody is overlooked."""
    processes = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, after = entry.read_text(errors="replace").partition("(")[2].rpartition(")")
            state, parent, *facts = after.split()
            computed_s = sum(map(int, facts[9:13])) / TICKS
            processes[int(entry.parent.name)] = Process(int(parent), name, state, computed_s)
    found: dict[int, Process] = {}
    generation = {ancestor}
    while generation := {number for number, process in processes.items() if process.parent in generation}:
        found |= {number: processes[number] for number in generation}
    return found


def _children(process: int) -> set[int]:
    """What its threads have started; nothing of a process that is gone, or that we may not look at.

    Asked for between any two calls of a candidate with dozens of threads, so without the convenience of paths.
    """
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError, PermissionError):
        for thread in os.listdir(f"/proc/{process}/task"):
            try:
                with open(f"/proc/{process}/task/{thread}/children", "rb", buffering=0) as children:
                    found.update(map(int, children.read().split()))
            except OSError:  # the thread has ended
                continue
    return found


def _prctl(option: int, value: int | ctypes.c_char_p) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise MachineryFault(f"prctl({option}) failed: {os.strerror(ctypes.get_errno())}; Linux 5.3 or newer is needed")
