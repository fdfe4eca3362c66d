"""A candidate and the rival it is compared with, where there is one: timed in turns, and what counts of either's times.

A rival is trusted no more than a candidate, but what it does is no fault of the candidate's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from stark_worker.correctness.reference import Reference
from stark_worker.processes.usage import Company, told
from stark_worker.protocol.intervals import median_interval
from stark_worker.protocol.report import BUSY, Timing
from stark_worker.protocol.request import EvalRequest
from stark_worker.referee import side_by_side
from stark_worker.referee.sampling import measure, no_fault_of_the_candidate, take_turns
from stark_worker.referee.trial import Trial
from stark_worker.timing.device_clock import median_device_ms
from stark_worker.timing.overhead import AGREEMENT
from stark_worker.timing.sample import Sample


def rival_of(request: EvalRequest) -> EvalRequest:
    """What is asked about the rival: the same, of another source."""
    assert request.rival_source is not None
    return replace(request, candidate_source=request.rival_source, entry=request.rival_entry)


def prepare(trial: Trial, rivals: Sequence[Trial]) -> None:
    """Who is compared with is prepared before there is anybody to disturb it, and looks around once there is."""
    with no_fault_of_the_candidate():
        for rival in rivals:
            rival.prepare()
    trial.prepare()
    with no_fault_of_the_candidate():
        for rival in rivals:
            rival.begin_anew()
            trial.agree_with(rival)


def look_at(trials: Sequence[Trial], reference: Reference) -> list[Seen]:
    """Calls in a row, and beside a rival also by themselves; a rival's on a GPU not before it is alone."""
    company = _company(trials)
    in_a_row = measure(trials, reference)
    singles: list[list[Sample]] = [[] for _ in trials]
    if len(trials) > 1 and trials[0].burst > 1:
        called = trials if trials[0].on_host else trials[:1]
        singles[: len(called)] = side_by_side.call(called, reference)
    if company and (busy := told(company.cores())):
        trials[0].checks[BUSY] = busy
    confirmed = list(map(Trial.confirms, trials, in_a_row))
    if _alike(trials):  # otherwise one's clock would be compared with another's
        confirmed = [all(confirmed)] * len(confirmed)
    return list(map(Seen, trials, in_a_row, singles, confirmed))


def timings(seen: Sequence[Seen]) -> list[Timing]:
    """What each took, as it was seen beside the other."""
    alike = _alike([each.trial for each in seen])
    found: list[Timing] = []
    for each in seen:
        with no_fault_of_the_candidate() if found else contextlib.nullcontext():
            found.append(each.trial.timing(each.in_a_row, each.confirmed, alike))
    return found


def look_at_alone(rival: Seen, mine: Seen, reference: Reference) -> Seen:
    """The rival once more, now that the candidate is gone; by itself where that was seen, too."""
    rival.trial.begin_anew()
    (in_a_row,) = measure([rival.trial], reference)
    singles = side_by_side.call([rival.trial], reference)[0] if mine.by_itself else []
    return rival._replace(in_a_row=in_a_row, by_itself=singles)


def timed_alone(rival: Seen, beside: Timing) -> tuple[Timing, str]:
    """A rival's times with nobody to hold it up, as it was seen then, and what is to be said of it.

    On a GPU work can go on while the process that launched it is stopped.
    """
    alone = rival.trial.timing(rival.in_a_row, rival.confirmed)
    if beside.median_ms <= (1.0 + AGREEMENT) * median_interval(alone.samples_ms)[1]:
        return beside, "took no longer beside the candidate than without it"
    times = beside.median_ms / alone.median_ms
    text = f"took {times:.2f} times as long beside the candidate as without it, and its times are those without it"
    return replace(beside, samples_ms=tuple(ms / times for ms in beside.samples_ms)), text


def _company(trials: Sequence[Trial]) -> Company | None:
    """Who computes beside those who are timed on the host, where they can be told from others."""
    candidates = [trial.candidate for trial in trials if trial.on_host and trial.candidate.visible]
    if len(candidates) < len(trials):
        return None
    return Company(lambda: time.process_time() + sum(candidate.computed_s() for candidate in candidates))


def _alike(trials: Sequence[Trial]) -> bool:
    """Whether their bursts are of one length."""
    return len({trial.burst for trial in trials}) == 1


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
