"""Decides which lane of a cluster judges which request. Pure: no clock, no network.

A lane keeps a warm referee for its recent tasks, so it prefers requests of those. No request waits for that for ever,
and no lane with room stays empty while a request may run there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

MAX_WARM_TASKS = 2  # as many referees does a lane keep
MAX_SKIPS = 8  # requests that may overtake the first one
LOOKAHEAD = 256


@dataclass
class Job:
    """A request that waits or runs. ``task`` is equal for requests that one warm referee can judge.

    ``avoid`` names lanes on which it met a fault of the machinery.
    """

    number: int
    task: str
    avoid: frozenset[str] = frozenset()
    skips: int = 0


@dataclass
class _Lane:
    name: str
    capacity: int
    running: set[int] = field(default_factory=set)
    warm: OrderedDict[str, None] = field(default_factory=OrderedDict)
    last_used: int = 0

    @property
    def has_room(self) -> bool:
        return len(self.running) < self.capacity

    def take(self, job: Job, turn: int) -> None:
        self.running.add(job.number)
        self.warm[job.task] = None
        self.warm.move_to_end(job.task)
        while len(self.warm) > MAX_WARM_TASKS:
            self.warm.popitem(last=False)
        self.last_used = turn


class Dispatcher:
    """The queue of requests and the lanes."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._queue: dict[int, Job] = {}  # oldest first
        self._turn = 0

    @property
    def lanes(self) -> list[str]:
        return list(self._lanes)

    def add_lane(self, name: str, capacity: int) -> None:
        self._lanes[name] = _Lane(name, capacity)

    def remove_lane(self, name: str) -> set[int]:
        """Forget a lane; return the numbers of the requests that ran on it."""
        lane = self._lanes.pop(name, None)
        return lane.running if lane else set()

    def submit(self, job: Job) -> None:
        self._queue[job.number] = job

    def finish(self, number: int) -> None:
        """Forget a request that is done or no longer wanted."""
        self._queue.pop(number, None)
        for lane in self._lanes.values():
            lane.running.discard(number)

    def assign(self) -> Iterator[tuple[int, str]]:
        """Yield the number of each request that can run now, and its lane."""
        while found := self._next():
            job, lane = found
            del self._queue[job.number]
            self._turn += 1
            lane.take(job, self._turn)
            yield job.number, lane.name

    def _next(self) -> tuple[Job, _Lane] | None:
        with_room = [lane for lane in self._lanes.values() if lane.has_room]
        for lane in sorted(with_room, key=lambda lane: (len(lane.running), lane.last_used)):
            first = next((job for job in self._queue.values() if self._may_run(job, lane)), None)
            if first is not None:
                return self._best_pair(first, lane, with_room)
        return None

    def _best_pair(self, first: Job, lane: _Lane, with_room: list[_Lane]) -> tuple[Job, _Lane]:
        """Return the first request on a lane as empty as this one that is warm, or else a later request that fits."""
        as_empty = (other for other in with_room if len(other.running) == len(lane.running))
        for other in as_empty:
            if first.task in other.warm and self._may_run(first, other):
                return first, other
        if first.skips < MAX_SKIPS:
            for job in islice(self._queue.values(), LOOKAHEAD):
                if job.task in lane.warm and self._may_run(job, lane):
                    first.skips += 1
                    return job, lane
        return first, lane

    def _may_run(self, job: Job, lane: _Lane) -> bool:
        return lane.name not in job.avoid or self._lanes.keys() <= job.avoid
