"""Calls by themselves, beside those in a row.

The inputs of calls in a row are all there from the beginning, so that what one call leaves idle, of cores or of a
device, can compute the next. Who gains by that takes longer for a call by itself, and what it takes longer counts. To
wake up takes time as well, a rival no less, and much of it now and then: the quickest quarter of the calls counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from stark_worker.protocol import Timing
from stark_worker.reference import Reference
from stark_worker.sampling import take_turns
from stark_worker.timing import Sample, median_device_ms
from stark_worker.trial import Trial

CALLS, QUARTER = 15, 4
HOST_MS = 5.0  # on the host nothing can be said of shorter calls: some of their time is waking up
AHEAD = 1.2  # how many times as long as in a row is not for sure longer
TOLD_MS, OUTSIDE_MS = 0.002, 0.15  # nor is so much beyond that, on a GPU, by its clock and by the referee's

Clock = Callable[[list[Sample]], float]  # what one call took of these


class Seen(NamedTuple):
    """What was seen of one trial: its calls, and whether what a device's clock tells of them counts."""

    trial: Trial
    in_a_row: list[Sample]
    by_itself: list[Sample]
    confirmed: bool


def call(trials: Sequence[Trial], reference: Reference) -> list[list[Sample]]:
    """Calls by themselves in turns, all of them compared; fewer where nothing can be said of them."""
    samples: list[list[Sample]] = [[] for _ in trials]
    while len(samples[0]) < CALLS and not _too_short(trials[0], samples[0]):
        take_turns(trials, samples, reference, [1] * len(trials), share=1.0)
    return samples


def timed(timing: Timing, mine: Seen, rival: Seen) -> Timing:
    """A candidate's times with what its calls take longer by themselves, all of which is unsure."""
    longer_ms = _longer_ms(mine, rival)
    if longer_ms == 0.0:
        return timing
    mine.trial.checks["timing"] += f"; by itself a call takes {longer_ms:.4f} ms longer, which counts"
    samples_ms = tuple(ms + longer_ms for ms in timing.samples_ms)
    return replace(timing, samples_ms=samples_ms, unsure_ms=timing.unsure_ms + longer_ms)


def _longer_ms(mine: Seen, rival: Seen) -> float:
    trial = mine.trial
    if _too_short(trial, mine.by_itself):
        return 0.0
    outside = longer_ms(mine, rival, trial.typical_ms, rival.trial.typical_ms, 0.0 if trial.on_host else OUTSIDE_MS)
    if not trial.gated:  # there is no other clock, or launching shows on it
        return outside
    return max(outside, longer_ms(mine, rival, median_device_ms, median_device_ms, TOLD_MS))


def longer_ms(mine: Seen, rival: Seen, clock: Clock, rivals_clock: Clock, slack_ms: float) -> float:
    """By how much a call takes longer by itself by such a clock, beyond what a rival does; 0 where that is not sure."""
    row_ms = clock(mine.in_a_row)
    waking_ms = max(_quick_ms(rival.by_itself, rivals_clock) - rivals_clock(rival.in_a_row), 0.0)
    took_ms = _quick_ms(mine.by_itself, clock) - waking_ms - slack_ms
    return took_ms - row_ms if took_ms > AHEAD * row_ms else 0.0


def _too_short(trial: Trial, samples: list[Sample]) -> bool:
    """Whether a quarter of the calls is, or will be, on the host."""
    return trial.on_host and sum(trial.typical_ms([sample]) < HOST_MS for sample in samples) >= QUARTER


def _quick_ms(samples: list[Sample], clock: Clock) -> float:
    """The longest of the quickest quarter."""
    return sorted(clock([sample]) for sample in samples)[QUARTER - 1]
