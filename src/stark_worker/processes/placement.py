"""Gives each busy thread of stopped processes a core of its own when they go on. No torch.

A thread that wakes may be put on a core that another one needs, while a second core stands still. Linux can leave both
there for 20 ms, so the same call takes once or twice its time. Threads that never stop stay apart.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stark_worker.processes.process_tree import ThreadFacts, thread_numbers, threads

FIRST_LOOK_S, LONGEST_LOOK_S = 0.0003, 0.002  # for new threads: most are started early in a call; a look takes 20 us
MIN_BUSY_NS = 100_000  # since the last stop; a thread that only wakes needs a tenth of it


class Placed(NamedTuple):
    """A thread, and the core that it gets."""

    thread: ThreadFacts
    core: int


class Placement:
    """The cores of one tree's threads. It remembers how long each thread ran, to know which ones are busy."""

    def __init__(self) -> None:
        self._ran_ns: dict[int, int] = {}
        self._placed: list[Placed] = []

    @property
    def look_again_s(self) -> float | None:
        """The time after which ``free_new_threads`` has to be called; None if no thread is held on a core."""
        return self._look_again_s if self._placed else None

    @contextlib.contextmanager
    def spread(self, processes: set[int]) -> Iterator[None]:
        """Put each busy thread of stopped processes on a core. They are continued within this context.

        They stay there until the next time. Only main threads may move at once: most others are started by them, and
        inherit their cores.
        """
        self._free(self._placed)
        self._processes, self._placed = processes, assign_cores(self._list_busy(processes))
        for thread, core in self._placed:
            _set_cores(thread.number, {core})
        yield
        self._free(each for each in self._placed if each.thread.number in processes)
        self._look_again_s = FIRST_LOOK_S

    def free_new_threads(self) -> None:
        """Let threads that were started meanwhile run anywhere: some inherited the core of a held one.

        They are driven from that core first, where they could stay for long.
        """
        self._look_again_s = min(2 * self._look_again_s, LONGEST_LOOK_S)
        everywhere = frozenset().union(*(thread.allowed for thread, _ in self._placed))
        cores = {core for _, core in self._placed}
        for thread in {each for process in self._processes for each in thread_numbers(process)} - self._ran_ns.keys():
            self._ran_ns[thread] = 0
            with contextlib.suppress(OSError):  # it ended
                if len(mine := os.sched_getaffinity(thread)) == 1 and mine <= cores:
                    _set_cores(thread, everywhere - mine)
                    _set_cores(thread, everywhere)

    def _free(self, placed: Iterable[Placed]) -> None:
        for thread, _ in placed:
            _set_cores(thread.number, thread.allowed)

    def _list_busy(self, processes: set[int]) -> list[ThreadFacts]:
        """Return the threads that ran since the last time, the busiest first; none if there is only one."""
        before, found = self._ran_ns, [each for process in processes for each in threads(process)]
        self._ran_ns = {each.number: each.ran_ns for each in found}
        ran_ns = {each: each.ran_ns - before.get(each.number, 0) for each in found}
        busy = sorted((each for each in found if ran_ns[each] >= MIN_BUSY_NS), key=ran_ns.__getitem__, reverse=True)
        return busy if len(busy) > 1 else []


def assign_cores(busy: Iterable[ThreadFacts]) -> list[Placed]:
    """Give each thread the core with the fewest threads so far, its last one if there is a choice."""
    placed: list[Placed] = []
    taken: Counter[int] = Counter()
    for thread in busy:
        *_, core = min((taken[core], core != thread.core, core) for core in thread.allowed)
        taken[core] += 1
        placed.append(Placed(thread, core))
    return placed


def _set_cores(thread: int, cores: Iterable[int]) -> None:
    with contextlib.suppress(OSError):  # it ended, or belongs to another user
        os.sched_setaffinity(thread, cores)
