"""Estimates the time left from the work done so far. Pure functions.

A piece of work needs seconds of its own, such as model calls, and seconds of a lane, which it holds alone. The work
left takes as long as the busiest lane, the runs in parallel, or the longest run, whichever is longest. What that rule
says of the work already done, against the time it really took, corrects what it says of the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stark.core.steps import Work
from stark_worker.protocol.request import Target

PRIOR_WEIGHT = 1.0  # of an assumed duration, in samples: a single sample may be far from the mean
MACHINE_WEIGHT = 0.25  # of the assumption that a machine is as fast as the one that was measured, in kinds of work
LEAST_REST = 0.1  # share of a piece in flight that is always left
MIN_CORRECTION, MAX_CORRECTION = 0.8, 2.0
LEAST_DONE_S = 10.0  # with less done than this, nothing is corrected


@dataclass(frozen=True)
class Seconds:
    """The seconds of a piece of work: its own, and those of a lane."""

    own: float = 0.0
    lane: float = 0.0

    @property
    def total(self) -> float:
        return self.own + self.lane

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.own + other.own, self.lane + other.lane)

    def scaled(self, factor: float, lane_factor: float | None = None) -> Seconds:
        return Seconds(self.own * factor, self.lane * (factor if lane_factor is None else lane_factor))


_GPU = {
    Work.REFERENCE: Seconds(0.0, 6.0),
    Work.ATTEMPT: Seconds(60.0, 4.0),
    Work.FINAL: Seconds(60.0, 16.0),
    Work.COMPILE: Seconds(0.0, 18.0),
    Work.AUTOTUNE: Seconds(0.0, 50.0),
    Work.GIVEN: Seconds(0.0, 4.0),
}
_CPU = {  # measured on two cores, in the proportions that matter here
    Work.REFERENCE: Seconds(0.0, 10.0),
    Work.ATTEMPT: Seconds(60.0, 16.0),
    Work.FINAL: Seconds(0.0, 75.0),
    Work.COMPILE: Seconds(0.0, 45.0),
    Work.AUTOTUNE: Seconds(0.0, 45.0),
    Work.GIVEN: Seconds(0.0, 16.0),
}
ASSUMED: dict[Target, Mapping[Work, Seconds]] = {Target.CPU: _CPU, Target.CUDA: _GPU, Target.TRITON: _GPU}


@dataclass(frozen=True)
class Piece:
    """A piece in flight, with the seconds it has taken, waiting for a lane left out."""

    work: Work
    taken: Seconds


@dataclass(frozen=True)
class RunLeft:
    """The work that a run has left: pieces that have not begun, and those in flight."""

    waiting: Mapping[Work, int]
    in_flight: Sequence[Piece] = ()
    jobs: int = 1


class Pace:
    """The mean seconds of each kind of work, from samples and an assumption that they soon outweigh."""

    def __init__(self, assumed: Mapping[Work, Seconds]) -> None:
        self._assumed = assumed
        self._sums: dict[Work, Seconds] = {}
        self.counts: dict[Work, int] = {}

    def add(self, work: Work, taken: Seconds) -> None:
        """Learn from a finished piece."""
        self._sums[work] = self._sums.get(work, Seconds()) + taken
        self.counts[work] = self.counts.get(work, 0) + 1

    def of(self, work: Work) -> Seconds:
        """Return the expected seconds of a piece."""
        assumed, count = self._assumed[work].scaled(1.0, self._lane_scale()), self.counts.get(work, 0)
        known = self._sums.get(work, Seconds())
        return (known + assumed.scaled(PRIOR_WEIGHT)).scaled(1 / (count + PRIOR_WEIGHT)) if count else assumed

    @property
    def done(self) -> Seconds:
        return sum(self._sums.values(), Seconds())

    def _lane_scale(self) -> float:
        """Return the slowness of the lanes: the geometric mean of measured over assumed, each kind of work once."""
        ratios = [
            self._sums[work].lane / count / self._assumed[work].lane
            for work, count in self.counts.items()
            if self._sums[work].lane
        ]
        return math.exp(sum(map(math.log, ratios)) / (len(ratios) + MACHINE_WEIGHT))


def estimate_seconds(
    pace: Pace, runs: Sequence[RunLeft], parallel_runs: int, lanes: int, elapsed_s: float
) -> float | None:
    """Return the seconds left; None before anything but references is done."""
    if not set(pace.counts) - {Work.REFERENCE}:
        return None
    needs = [_needs(run, pace) for run in runs]
    plain = _duration(needs, parallel_runs, lanes)
    in_flight = sum((piece.taken for run in runs for piece in run.in_flight), Seconds())
    done = pace.done + in_flight
    parallel = min(parallel_runs, len(runs) or 1) * max((run.jobs for run in runs), default=1)
    ideal = max(done.lane / lanes, done.total / parallel)
    if ideal < LEAST_DONE_S:
        return plain
    return plain * min(MAX_CORRECTION, max(MIN_CORRECTION, elapsed_s / ideal))


@dataclass(frozen=True)
class _Need:
    """The seconds of lanes that a run needs, and those that it takes if it never waits for a lane."""

    lane_s: float
    alone_s: float


def _needs(run: RunLeft, pace: Pace) -> _Need:
    pieces = [(work, pace.of(work).scaled(count)) for work, count in run.waiting.items()]
    pieces += [(piece.work, _rest(piece, pace)) for piece in run.in_flight]
    together = sum((seconds.total for work, seconds in pieces if work is Work.ATTEMPT), 0.0)
    one_by_one = sum(seconds.total for work, seconds in pieces if work is not Work.ATTEMPT)
    return _Need(sum(seconds.lane for _, seconds in pieces), together / run.jobs + one_by_one)


def _rest(piece: Piece, pace: Pace) -> Seconds:
    """The seconds that a piece in flight still needs. Its lane comes after its model calls."""
    whole = pace.of(piece.work)
    return Seconds(
        max(LEAST_REST * whole.own if not piece.taken.lane else 0.0, whole.own - piece.taken.own),
        max(LEAST_REST * whole.lane, whole.lane - piece.taken.lane),
    )


def _duration(needs: Sequence[_Need], parallel_runs: int, lanes: int) -> float:
    alone = [need.alone_s for need in needs]
    return max([sum(need.lane_s for need in needs) / lanes, sum(alone) / parallel_runs, *alone], default=0.0)
