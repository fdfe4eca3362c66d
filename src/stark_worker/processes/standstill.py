"""Stops all descendants of this process, lets them go on, and tells if one of them ran in between. No torch.

A stopped process runs again only after SIGCONT, which no stopped process can send. Seccomp refuses the calls by which
the system itself would send it later. A cgroup's freezer would need rights that few machines give, so signals have to
do, and every stop is checked at its end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from stark_worker.processes.placement import Placement
from stark_worker.processes.process_tree import children, signal_all, thread_states

# About two seconds: far more than any thread needs, except for one that waits for a process it started by vfork. They
# are counted, because a virtual machine can itself stand still for as long.
MAX_ROUNDS = 20_000
MAX_S = 10.0  # a tree of many processes makes rounds long; the referee waits longer than this

_POLL_S, _SETTLE_S = 1e-5, 1e-4
_ANY_CHILD = 0x40000000  # __WALL: also a child that announces its end by another signal than SIGCHLD


class NotStopped(Exception):
    """A process goes on, although it was stopped."""


class Rest(NamedTuple):
    """The end of a standstill, by the clock that all processes share. ``has_moved`` if a process ran before it."""

    ended_s: float
    has_moved: bool


class Standstill:
    """All descendants of this process, stopped. This process must adopt orphans and must not reap them meanwhile.

    The system reports the stop of a child once all its threads have stopped. It reports again if the child is
    continued, ends or is stopped another time, so no report means no movement. The reports of further descendants go to
    their own parents. Their CPU time shows if they moved.
    """

    def __init__(self, placement: Placement) -> None:
        """Stop them. Raise NotStopped if one goes on."""
        self._placement = placement
        self._rounds, self._until = 0, time.monotonic() + MAX_S
        self._children: set[int] = set()
        self._further: set[int] = set()
        self._stop_all()
        self._children = {child for child in self._children if not _has_ended(child)}
        self._cpu_ns = self._settled_cpu_ns()

    def end(self) -> Rest:
        """Let all go on."""
        processes = self._children | self._further
        with self._placement.spread(processes):
            has_moved = any(map(_has_child_moved, self._children)) or self._has_further_moved()
            ended_s = time.perf_counter()
            signal_all(processes, signal.SIGCONT)
        return Rest(ended_s, has_moved)

    def _stop_all(self) -> None:
        """Stop one generation after the other.

        Each process is stopped before its children are listed, so that it starts no more of them. It is listed again
        after its children have stopped, because a dying process leaves its children to an ancestor.
        """
        me = os.getpid()
        parents = [me]
        while parents:
            is_own = parents[-1] == me
            if new := children(parents[-1]) - self._children - self._further:
                self._count_round()
                self._stop(new, _is_child_stopped if is_own else _is_stopped)
                (self._children if is_own else self._further).update(new)
                parents += new
            else:
                parents.pop()

    def _stop(self, processes: set[int], is_stopped: Callable[[int], bool]) -> None:
        waiting = processes
        while waiting:
            signal_all(waiting, signal.SIGSTOP)  # again, because a process that executes a program can lose a signal
            time.sleep(_POLL_S)  # a loop without a pause would keep threads from a core that they need to stop
            waiting = {process for process in waiting if not is_stopped(process)}
            self._count_round()

    def _count_round(self) -> None:
        self._rounds += 1
        if self._rounds > MAX_ROUNDS or time.monotonic() > self._until:
            raise NotStopped

    def _settled_cpu_ns(self) -> dict[int, int]:
        """Return the CPU times of the further descendants, once the stop itself is part of them."""
        before: dict[int, int] = {}
        while (now := self._read_cpu_ns()) != before:
            self._count_round()
            before = now
            time.sleep(_SETTLE_S)
        return now

    def _has_further_moved(self) -> bool:
        """True if a further descendant used CPU time, or runs now and its CPU time is not counted yet."""
        return self._read_cpu_ns() != self._cpu_ns or not all(map(_is_stopped, self._further))

    def _read_cpu_ns(self) -> dict[int, int]:
        """Return the CPU time of each further descendant that still exists, over all its threads."""
        found = {}
        for process in self._further:
            with contextlib.suppress(OSError):
                found[process] = time.clock_gettime_ns(~process << 3 | 2)  # the system's name of that clock
        return found


def _is_child_stopped(child: int) -> bool:
    """True if all threads of a child have stopped since the last question, or if the child has ended."""
    try:
        return os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG | _ANY_CHILD) is not None
    except ChildProcessError:
        return True


def _has_ended(child: int) -> bool:
    """True if a child has ended. It is not reaped."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG | _ANY_CHILD) is not None


def _has_child_moved(child: int) -> bool:
    """True if a child was continued, stopped again or ended since it was stopped."""
    try:
        return os.waitid(os.P_PID, child, os.WSTOPPED | os.WCONTINUED | os.WNOHANG | _ANY_CHILD) is not None
    except ChildProcessError:
        return True


def _is_stopped(process: int) -> bool:
    """True if every thread of a process is stopped or has ended."""
    return thread_states(process) <= {"T", "Z", "X"}
