"""A candidate and the opponent it is compared with, where there is one: timed in turns, and what counts of either's times.

An opponent is trusted no more than a candidate, but what it does is no fault of the candidate's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from stark_worker.correctness.reference import Reference
from stark_worker.processes.usage import CpuLoad, busy_warning
from stark_worker.protocol.intervals import median_interval
from stark_worker.protocol.report import Check, Timing
from stark_worker.protocol.request import EvalRequest
from stark_worker.referee import side_by_side
from stark_worker.referee.sampling import measure, opponent_errors_as_machine_faults, take_turns
from stark_worker.referee.trial import Trial
from stark_worker.timing.device_clock import median_device_ms
from stark_worker.timing.overhead import CLOCK_AGREEMENT_SHARE
from stark_worker.timing.sample import Sample


def opponent_of(request: EvalRequest) -> EvalRequest:
    """What is asked about the opponent: the same, of another source."""
    assert request.opponent_source is not None
    return replace(request, candidate_source=request.opponent_source, entry=request.opponent_entry)


def prepare(trial: Trial, opponents: Sequence[Trial]) -> None:
    """Who is compared with is prepared before there is anybody to disturb it, and looks around once there is."""
    with opponent_errors_as_machine_faults():
        for opponent in opponents:
            opponent.prepare()
    trial.prepare()
    with opponent_errors_as_machine_faults():
        for opponent in opponents:
            opponent.restart_clock()
            trial.cap_overhead_at(opponent)


def measure_calls(trials: Sequence[Trial], reference: Reference) -> list[Measurement]:
    """Calls in a row, and beside an opponent also by themselves; an opponent's on a GPU not before it is alone."""
    load = _cpu_load(trials)
    burst_calls = measure(trials, reference)
    singles: list[list[Sample]] = [[] for _ in trials]
    if len(trials) > 1 and trials[0].burst > 1:
        called = trials if trials[0].on_host else trials[:1]
        singles[: len(called)] = side_by_side.call(called, reference)
    if load and (busy := busy_warning(load.busy_cores())):
        trials[0].busy_warning = busy
    confirmed = list(map(Trial.confirms, trials, burst_calls))
    if _has_equal_bursts(trials):  # otherwise one's clock would be compared with another's
        confirmed = [all(confirmed)] * len(confirmed)
    return list(map(Measurement, trials, burst_calls, singles, confirmed))


def timings(seen: Sequence[Measurement]) -> list[Timing]:
    """What each took, as it was seen beside the other."""
    equal_bursts = _has_equal_bursts([each.trial for each in seen])
    found: list[Timing] = []
    for each in seen:
        with opponent_errors_as_machine_faults() if found else contextlib.nullcontext():
            found.append(each.trial.timing(each.burst_calls, each.confirmed, equal_bursts))
    return found


def measure_alone(opponent: Measurement, mine: Measurement, reference: Reference) -> Measurement:
    """The opponent once more, now that the candidate is gone; by itself where that was seen, too."""
    opponent.trial.restart_clock()
    (burst_calls,) = measure([opponent.trial], reference)
    singles = side_by_side.call([opponent.trial], reference)[0] if mine.single_calls else []
    return opponent._replace(burst_calls=burst_calls, single_calls=singles)


def choose_opponent_timing(opponent: Measurement, beside: Timing) -> tuple[Timing, str]:
    """An opponent's times with nobody to hold it up, as it was seen then, and what is to be said of it.

    On a GPU work can go on while the process that launched it is stopped.
    """
    alone = opponent.trial.timing(opponent.burst_calls, opponent.confirmed)
    if beside.median_ms <= (1.0 + CLOCK_AGREEMENT_SHARE) * median_interval(alone.samples_ms)[1]:
        return beside, "took no longer beside the candidate than without it"
    times = beside.median_ms / alone.median_ms
    text = f"took {times:.2f} times as long beside the candidate as without it, and its times are those without it"
    return replace(beside, samples_ms=tuple(ms / times for ms in beside.samples_ms)), text


def _cpu_load(trials: Sequence[Trial]) -> CpuLoad | None:
    """Who computes beside those who are timed on the host, where they can be distinguished from others."""
    candidates = [trial.candidate for trial in trials if trial.on_host and trial.candidate.visible]
    if len(candidates) < len(trials):
        return None
    return CpuLoad(lambda: time.process_time() + sum(candidate.cpu_s() for candidate in candidates))


def _has_equal_bursts(trials: Sequence[Trial]) -> bool:
    """Whether their bursts are of one length."""
    return len({trial.burst for trial in trials}) == 1


SINGLE_CALLS, QUARTER_OF_CALLS = 15, 4


MIN_HOST_CALL_MS = 5.0  # on the host nothing can be said of shorter calls: some of their time is waking up


MIN_EXCESS_RATIO = 1.2  # how many times as long as in a row is not for sure longer


DEVICE_SLACK_MS, REFEREE_SLACK_MS = (
    0.002,
    0.15,
)  # nor is so much beyond that, on a GPU, by its clock and by the referee's


Clock = Callable[[list[Sample]], float]  # what one call took of these


class Measurement(NamedTuple):
    """What was seen of one trial: its calls, and whether what a device's clock tells of them counts."""

    trial: Trial
    burst_calls: list[Sample]
    single_calls: list[Sample]
    confirmed: bool


def call(trials: Sequence[Trial], reference: Reference) -> list[list[Sample]]:
    """Calls by themselves in turns, all of them compared; fewer where nothing can be said of them."""
    samples: list[list[Sample]] = [[] for _ in trials]
    while len(samples[0]) < SINGLE_CALLS and not _too_short(trials[0], samples[0]):
        take_turns(trials, samples, reference, [1] * len(trials), share=1.0)
    return samples


def timed(timing: Timing, mine: Measurement, opponent: Measurement) -> Timing:
    """A candidate's times with what its calls take longer by themselves, all of which is unsure."""
    single_call_excess_ms = _excess_ms(mine, opponent)
    if single_call_excess_ms == 0.0:
        return timing
    mine.trial.checks[Check.TIMING] += f"; by itself a call takes {single_call_excess_ms:.4f} ms longer, which counts"
    samples_ms = tuple(ms + single_call_excess_ms for ms in timing.samples_ms)
    return replace(timing, samples_ms=samples_ms, unsure_ms=timing.unsure_ms + single_call_excess_ms)


def _excess_ms(mine: Measurement, opponent: Measurement) -> float:
    trial = mine.trial
    if _too_short(trial, mine.single_calls):
        return 0.0
    outside = single_call_excess_ms(
        mine, opponent, trial.typical_ms, opponent.trial.typical_ms, 0.0 if trial.on_host else REFEREE_SLACK_MS
    )
    if not trial.gated:  # there is no other clock, or launching shows on it
        return outside
    return max(outside, single_call_excess_ms(mine, opponent, median_device_ms, median_device_ms, DEVICE_SLACK_MS))


def single_call_excess_ms(
    mine: Measurement, opponent: Measurement, clock: Clock, opponents_clock: Clock, slack_ms: float
) -> float:
    """By how much a call takes longer by itself by such a clock, beyond what an opponent does; 0 where that is not sure."""
    row_ms = clock(mine.burst_calls)
    waking_ms = max(
        _quick_quarter_ms(opponent.single_calls, opponents_clock) - opponents_clock(opponent.burst_calls), 0.0
    )
    took_ms = _quick_quarter_ms(mine.single_calls, clock) - waking_ms - slack_ms
    return took_ms - row_ms if took_ms > MIN_EXCESS_RATIO * row_ms else 0.0


def _too_short(trial: Trial, samples: list[Sample]) -> bool:
    """Whether a quarter of the calls is, or will be, on the host."""
    return (
        trial.on_host and sum(trial.typical_ms([sample]) < MIN_HOST_CALL_MS for sample in samples) >= QUARTER_OF_CALLS
    )


def _quick_quarter_ms(samples: list[Sample], clock: Clock) -> float:
    """The longest of the quickest quarter."""
    return sorted(clock([sample]) for sample in samples)[QUARTER_OF_CALLS - 1]
