"""Process trees on Linux: listing and killing all descendants of a process. No torch."""

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

KILL_TIMEOUT_S = 5.0
TIMED_NICENESS = -10  # other processes get a tenth of a contended core, enough to end this one
TICKS = os.sysconf("SC_CLK_TCK")

_HAS_CHILDREN_FILES = os.path.exists("/proc/thread-self/children")  # not in every kernel
_READ_BYTES = 2**16
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36


def die_with_parent(parent: int) -> None:
    """End this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def set_process_name(name: str) -> None:
    """Set the name that lists of processes show, at most 15 characters."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def raise_priority(niceness: int = TIMED_NICENESS) -> None:
    """Give this process and its children priority over others, if permitted: mostly for root.

    Other load slows timed processes, and one of two far more than the other: its threads may share a core and wait for
    each other. The autogroup gets the priority too, because sessions otherwise share a machine equally.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    with contextlib.suppress(OSError):  # not in every kernel
        Path("/proc/self/autogroup").write_text(str(niceness))


def adopt_orphans() -> None:
    """Become the parent of processes that a descendant leaves behind when it ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory(hidden: bool = True) -> None:
    """Keep other processes of the same user from reading this one's memory and environment, or allow it again."""
    _prctl(_PR_SET_DUMPABLE, int(not hidden))


def kill_descendants() -> None:
    """Kill all descendants of this process until none is left. The process must adopt orphans."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while (found := descendants(os.getpid())) and time.monotonic() < deadline:
        for order in (signal.SIGSTOP, signal.SIGKILL):  # a stopped process cannot fork faster than it is killed
            signal_all(found, order)
        reap()


def signal_all(processes: Iterable[int], order: signal.Signals) -> None:
    """Send a signal to those processes that still exist."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, order)


def reap() -> None:
    """Collect the exit status of all children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Process(NamedTuple):
    """An entry of the process list. In state Z it has ended but was not reaped. ``cpu_s`` includes ended children."""

    parent: int
    name: str
    state: str
    cpu_s: float


def descendants(ancestor: int) -> dict[int, Process]:
    """Return all descendants of a process by pid. Reads every entry of /proc, which is slow but misses none."""
    processes = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, after = entry.read_text(errors="replace").partition("(")[2].rpartition(")")
            state, parent, *facts = after.split()
            cpu_s = sum(map(int, facts[9:13])) / TICKS
            processes[int(entry.parent.name)] = Process(int(parent), name, state, cpu_s)
    found: dict[int, Process] = {}
    generation = {ancestor}
    while generation := {number for number, process in processes.items() if process.parent in generation}:
        found |= {number: processes[number] for number in generation}
    return found


def children(process: int) -> set[int]:
    """Return the children of all threads of a process; none if the process is gone.

    The list is complete if the process is stopped.
    """
    if not _HAS_CHILDREN_FILES:
        return {number for number, each in descendants(process).items() if each.parent == process}
    return set(map(int, b" ".join(read_of_threads(process, "children")).split()))


def thread_numbers(process: int) -> set[int]:
    """Return all threads of a process; none if the process is gone."""
    try:
        return set(map(int, os.listdir(f"/proc/{process}/task")))
    except (FileNotFoundError, ProcessLookupError):
        return set()


def thread_states(process: int) -> set[str]:
    """Return the states of all threads of a process, such as T for stopped; none if the process is gone."""
    return {facts.rpartition(b")")[2].split()[0].decode() for facts in read_of_threads(process, "stat") if facts}


class ThreadFacts(NamedTuple):
    """A thread of a process: the core on which it ran last, the cores it may use, and for how long it ran in all."""

    number: int
    core: int
    allowed: frozenset[int]
    ran_ns: int


def threads(process: int) -> list[ThreadFacts]:
    """Return all threads of a process; none if the process is gone, or if the kernel does not count their times."""
    found = []
    for number in thread_numbers(process):
        stat, times = (_read_of_thread(process, number, name) for name in ("stat", "schedstat"))
        with contextlib.suppress(OSError, IndexError):  # the thread has ended
            core = int(stat.rpartition(b")")[2].split()[36])
            found.append(ThreadFacts(number, core, frozenset(os.sched_getaffinity(number)), int(times.split()[0])))
    return found


def read_of_threads(process: int, name: str) -> list[bytes]:
    """Return a file of /proc for each thread of a process that still runs."""
    return [_read_of_thread(process, number, name) for number in sorted(thread_numbers(process))]


def _read_of_thread(process: int, thread: int, name: str) -> bytes:
    return _read(f"/proc/{process}/task/{thread}/{name}")


def _read(path: str) -> bytes:
    """Return the content of a file of /proc; nothing if it is gone. ``Path`` would take three times as long."""
    content = b""
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            while part := os.read(file, _READ_BYTES):
                content += part
        finally:
            os.close(file)
    except (FileNotFoundError, ProcessLookupError):
        return b""
    return content


def _prctl(option: int, value: int | ctypes.c_char_p) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise MachineryFault(f"prctl({option}) failed: {os.strerror(ctypes.get_errno())}; Linux 5.3 or newer is needed")
