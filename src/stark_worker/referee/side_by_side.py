"""Times a candidate in turns with its opponent, if it has one, and decides which times count.

An opponent is trusted no more than a candidate, but its errors are not the candidate's fault.
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
from stark_worker.referee.sampling import measure, opponent_errors_as_machine_faults, take_turns
from stark_worker.referee.trial import Trial
from stark_worker.timing.device_clock import median_device_ms
from stark_worker.timing.overhead import CLOCK_AGREEMENT_SHARE
from stark_worker.timing.sample import Sample

SINGLE_CALLS, QUARTER_OF_CALLS = 15, 4
MIN_HOST_CALL_MS = 5.0  # shorter calls on the host are not judged: part of their time is waking up
MIN_EXCESS_RATIO = 1.2  # of a single call to one in a burst; a smaller ratio may be noise
DEVICE_SLACK_MS, REFEREE_SLACK_MS = 0.002, 0.15  # of a single call on a GPU, by either clock: less may be noise

Clock = Callable[[list[Sample]], float]  # returns the time of one call


class Measurement(NamedTuple):
    """Samples of one trial; ``confirmed`` is True if the device's clock counts."""

    trial: Trial
    burst_calls: list[Sample]
    single_calls: list[Sample]
    confirmed: bool


def opponent_of(request: EvalRequest) -> EvalRequest:
    """Return the same request for the opponent's source."""
    assert request.opponent_source is not None
    return replace(request, candidate_source=request.opponent_source, entry=request.opponent_entry)


def prepare(trial: Trial, opponents: Sequence[Trial]) -> None:
    """Prepare the opponent first, alone; recalibrate it after the candidate starts."""
    with opponent_errors_as_machine_faults():
        for opponent in opponents:
            opponent.prepare()
    trial.prepare()
    with opponent_errors_as_machine_faults():
        for opponent in opponents:
            opponent.restart_clock()
            trial.cap_overhead_at(opponent)


def measure_calls(trials: Sequence[Trial], reference: Reference) -> list[Measurement]:
    """Measure bursts, and with an opponent also single calls. A GPU opponent's single calls follow when it is alone."""
    load = _cpu_load(trials)
    burst_calls = measure(trials, reference)
    singles: list[list[Sample]] = [[] for _ in trials]
    if len(trials) > 1 and trials[0].burst > 1:
        called = trials if trials[0].on_host else trials[:1]
        singles[: len(called)] = measure_single_calls(called, reference)
    if load and (busy := busy_warning(load.busy_cores())):
        trials[0].busy_warning = busy
    confirmed = list(map(Trial.confirms, trials, burst_calls))
    if _has_equal_bursts(trials):  # otherwise two different clocks would be compared
        confirmed = [all(confirmed)] * len(confirmed)
    return list(map(Measurement, trials, burst_calls, singles, confirmed))


def measure_single_calls(trials: Sequence[Trial], reference: Reference) -> list[list[Sample]]:
    """Measure single calls in turns and compare them all; stop early if they are too short to judge."""
    samples: list[list[Sample]] = [[] for _ in trials]
    while len(samples[0]) < SINGLE_CALLS and not _is_too_short(trials[0], samples[0]):
        take_turns(trials, samples, reference, [1] * len(trials), share=1.0)
    return samples


def measure_alone(opponent: Measurement, mine: Measurement, reference: Reference) -> Measurement:
    """Measure the opponent again after the candidate ended; include single calls if the candidate has some."""
    opponent.trial.restart_clock()
    (burst_calls,) = measure([opponent.trial], reference)
    singles = measure_single_calls([opponent.trial], reference)[0] if mine.single_calls else []
    return opponent._replace(burst_calls=burst_calls, single_calls=singles)


def timings(measurements: Sequence[Measurement]) -> list[Timing]:
    """Return the timing of each trial, as measured in turns."""
    equal_bursts = _has_equal_bursts([each.trial for each in measurements])
    found: list[Timing] = []
    for each in measurements:
        with opponent_errors_as_machine_faults() if found else contextlib.nullcontext():
            found.append(each.trial.timing(each.burst_calls, each.confirmed, equal_bursts))
    return found


def choose_opponent_timing(opponent: Measurement, in_turns: Timing) -> tuple[Timing, str]:
    """Return the opponent's times as if the candidate had not slowed it, and a sentence for the report.

    On a GPU a candidate's work can go on while its process is stopped.
    """
    alone = opponent.trial.timing(opponent.burst_calls, opponent.confirmed)
    if in_turns.median_ms <= (1.0 + CLOCK_AGREEMENT_SHARE) * median_interval(alone.samples_ms)[1]:
        return in_turns, "took no longer in turns with the candidate than alone"
    times = in_turns.median_ms / alone.median_ms
    text = f"took {times:.2f} times as long in turns with the candidate as alone; its times alone count"
    return replace(in_turns, samples_ms=tuple(ms / times for ms in in_turns.samples_ms)), text


def add_single_call_excess(timing: Timing, mine: Measurement, opponent: Measurement) -> Timing:
    """Add the time that single calls take longer than calls in bursts; all of it is uncertain."""
    excess_ms = _excess_ms(mine, opponent)
    if excess_ms == 0.0:
        return timing
    mine.trial.checks[Check.TIMING] += f"; a single call takes {excess_ms:.4f} ms longer, which is added"
    samples_ms = tuple(ms + excess_ms for ms in timing.samples_ms)
    return replace(timing, samples_ms=samples_ms, unsure_ms=timing.unsure_ms + excess_ms)


def _excess_ms(mine: Measurement, opponent: Measurement) -> float:
    trial = mine.trial
    if _is_too_short(trial, mine.single_calls):
        return 0.0
    slack_ms = 0.0 if trial.on_host else REFEREE_SLACK_MS
    outside = single_call_excess_ms(mine, opponent, trial.typical_ms, opponent.trial.typical_ms, slack_ms)
    if not trial.is_gated:  # there is no other clock, or it shows launching
        return outside
    return max(outside, single_call_excess_ms(mine, opponent, median_device_ms, median_device_ms, DEVICE_SLACK_MS))


def single_call_excess_ms(
    mine: Measurement, opponent: Measurement, clock: Clock, opponents_clock: Clock, slack_ms: float
) -> float:
    """Return how much longer a single call takes than one in a burst, less the opponent's excess; 0 if uncertain."""
    burst_ms = clock(mine.burst_calls)
    opponent_ms = _quick_quarter_ms(opponent.single_calls, opponents_clock)
    waking_ms = max(opponent_ms - opponents_clock(opponent.burst_calls), 0.0)
    took_ms = _quick_quarter_ms(mine.single_calls, clock) - waking_ms - slack_ms
    return took_ms - burst_ms if took_ms > MIN_EXCESS_RATIO * burst_ms else 0.0


def _is_too_short(trial: Trial, samples: list[Sample]) -> bool:
    """True if a quarter of all calls on the host are too short to judge."""
    if not trial.on_host:
        return False
    return sum(trial.typical_ms([sample]) < MIN_HOST_CALL_MS for sample in samples) >= QUARTER_OF_CALLS


def _quick_quarter_ms(samples: list[Sample], clock: Clock) -> float:
    """Return the longest time of the quickest quarter."""
    return sorted(clock([sample]) for sample in samples)[QUARTER_OF_CALLS - 1]


def _cpu_load(trials: Sequence[Trial]) -> CpuLoad | None:
    """Measure the CPU load of other processes; None if the trials' own processes cannot be seen."""
    candidates = [trial.candidate for trial in trials if trial.on_host and trial.candidate.is_visible]
    if len(candidates) < len(trials):
        return None
    return CpuLoad(lambda: time.process_time() + sum(candidate.cpu_s() for candidate in candidates))


def _has_equal_bursts(trials: Sequence[Trial]) -> bool:
    """True if all bursts have the same length."""
    return len({trial.burst for trial in trials}) == 1
