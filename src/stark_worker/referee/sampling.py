"""Takes timed samples of one candidate, or of two in turns, until they suffice."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stark_worker.correctness.reference import Reference
from stark_worker.processes.usage import CpuLoad, busy_warning
from stark_worker.protocol.errors import Failure, MachineryFault
from stark_worker.protocol.report import Timing
from stark_worker.protocol.request import EvalRequest
from stark_worker.referee.trial import Trial
from stark_worker.timing.measurement import MAX_DISTURBED, MIN_SAMPLES, is_dismissed

BRIEF_SAMPLES = MIN_SAMPLES
HOST_SAMPLES, DEVICE_SAMPLES, KERNELBENCH_SAMPLES = (30, 100), (30, 200), (100, 100)  # enough, and most
SAMPLING_S, SAMPLING_DEVICE_S, MAX_SAMPLING_S = 2.0, 0.5, 10.0
RECHECK_EVERY = 5  # samples
MAX_SLOWED_RATIO = 1.03  # of an opponent's times in turns to its times alone; a warm device clocks down by as much


@contextlib.contextmanager
def opponent_errors_as_machine_faults() -> Iterator[None]:
    """Turn an opponent's failure into a fault of the machine: the candidate did not cause it."""
    try:
        yield
    except Failure as failure:
        raise MachineryFault(f"What the candidate is compared with failed: {failure.log}") from failure


def opponent_of(request: EvalRequest) -> EvalRequest:
    """Return the same request for the opponent's source."""
    assert request.opponent_source is not None
    return replace(request, candidate_source=request.opponent_source, entry=request.opponent_entry)


def prepare(trial: Trial, opponents: Sequence[Trial]) -> None:
    """Prepare the opponent first, alone. Then time both gated, or both awake if either cannot be gated."""
    with opponent_errors_as_machine_faults():
        for opponent in opponents:
            opponent.prepare()
    trial.prepare()
    trials = [trial, *opponents]
    why_awake = next((each.why_awake for each in trials if each.why_awake), None)
    for each in trials:
        each.restart_clock()
        each.why_awake = why_awake
        each.is_gated = not each.on_host and why_awake is None


def measure(trials: Sequence[Trial], reference: Reference) -> list[Timing]:
    """Take enough samples of each for a stable median, fewer of slow ones, and return their timings.

    Two take turns on the same inputs, so that a slow machine slows both.
    """
    load = _cpu_load(trials)
    began = time.monotonic()
    while not _has_enough(trials[0], len(trials), time.monotonic() - began):
        _take_turns(trials, reference)
    if load and (busy := busy_warning(load.busy_cores())):
        trials[0].busy_warning = busy
    timing = trials[0].timing()
    with opponent_errors_as_machine_faults():
        return [timing, *(_opponent_timing(opponent) for opponent in trials[1:])]


def correct_opponent(in_turns: Timing, opponent: Trial, reference: Reference) -> tuple[Timing, str]:
    """Time the opponent of a candidate that has ended, alone. Return its times as if nothing had slowed it.

    On a GPU the work of a candidate can go on while its processes are stopped.
    """
    opponent.restart()
    with opponent_errors_as_machine_faults():
        (alone,) = measure([opponent], reference)
    if in_turns.median_ms <= MAX_SLOWED_RATIO * alone.interval_ms[1] + alone.unsure_ms:
        return in_turns, "took no longer in turns with the candidate than alone"
    ratio = in_turns.median_ms / alone.median_ms
    text = f"took {ratio:.2f} times as long in turns with the candidate as alone; its times alone count"
    return replace(in_turns, samples_ms=tuple(ms / ratio for ms in in_turns.samples_ms)), text


def _opponent_timing(opponent: Trial) -> Timing:
    """Return the times of an opponent. They are not in doubt: it gains nothing if it hides work."""
    return replace(opponent.timing(), unsure_ms=0.0)


def _take_turns(trials: Sequence[Trial], reference: Reference) -> None:
    """Take one more sample of each on the same inputs, in random order. A disturbed sample of one drops both.

    It counts against the candidate, whoever's turn it was: an opponent is never held up when it is alone.
    """
    case = reference.timed_case()
    turns = list(trials)
    random.SystemRandom().shuffle(turns)
    taken = []
    for trial in turns:
        with contextlib.nullcontext() if trial is trials[0] else opponent_errors_as_machine_faults():
            taken.append((trial, trial.time_call(case)))
    if any(times is None for _, times in taken):
        trials[0].disturbed += 1
        return
    for trial, times in taken:
        assert times is not None
        trial.times.append(times)
    if len(trials) > 1 and trials[0].is_gated and len(trials[0].times) % RECHECK_EVERY == 0:
        trials[0].drift_ms = trials[1].recheck(reference.timed_inputs())


def _has_enough(trial: Trial, sides: int, spent_s: float) -> bool:
    """True if so many samples suffice; the score ``kernelbench`` takes as many as KernelBench if it can."""
    count = len(trial.times)
    if sides == 1 and is_dismissed(trial.certain_ms(), trial.best_ms):
        return True
    if trial.is_brief:
        return count >= BRIEF_SAMPLES or trial.disturbed > MAX_DISTURBED + count
    enough, most = HOST_SAMPLES if trial.on_host else KERNELBENCH_SAMPLES if trial.is_kernelbench else DEVICE_SAMPLES
    if count >= most or trial.disturbed > MAX_DISTURBED + count:
        return True
    if spent_s > MAX_SAMPLING_S * sides:
        enough = MIN_SAMPLES
    least_s = SAMPLING_S if trial.on_host else SAMPLING_DEVICE_S
    return count >= enough and spent_s > least_s * sides


def _cpu_load(trials: Sequence[Trial]) -> CpuLoad | None:
    """Measure the CPU load of other processes; None if the trials' own processes cannot be seen."""
    candidates = [trial.candidate for trial in trials if trial.on_host and trial.candidate.is_visible]
    if len(candidates) < len(trials):
        return None
    return CpuLoad(lambda: time.process_time() + sum(candidate.cpu_s() for candidate in candidates))
