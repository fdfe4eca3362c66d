"""Takes timed samples of one candidate, or of two in turns, until they suffice."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Iterator, Sequence

from stark_worker.correctness.reference import Reference
from stark_worker.protocol.errors import Failure, MachineryFault
from stark_worker.referee.trial import Trial
from stark_worker.timing.sample import Sample

MIN_SAMPLES, SAMPLES_ENOUGH, MAX_SAMPLES = 8, 30, 100  # fewer give no interval of 99 %
BURSTS_ENOUGH, MAX_BURSTS = 15, 30
MIN_BURST_SHARE = 0.75  # of the longest burst
MAX_BURST_RATIO = 2.0  # of burst lengths that are made equal
SAMPLING_S, SAMPLING_DEVICE_S, MAX_SAMPLING_S = 2.0, 1.0, 10.0
COMPARED_SHARE, MIN_COMPARED = 0.1, 6  # of huge calls, where not all are compared


@contextlib.contextmanager
def opponent_errors_as_machine_faults() -> Iterator[None]:
    """Turn an opponent's failure into a fault of the machine: the candidate did not cause it."""
    try:
        yield
    except Failure as failure:
        raise MachineryFault(f"What the candidate is compared with failed: {failure.log}") from failure


def measure(trials: Sequence[Trial], reference: Reference) -> list[list[Sample]]:
    """Take enough samples of each for a stable median, fewer of slow ones.

    Two take turns on the same inputs, so that a slow machine slows both.
    """
    equalise_bursts(trials)
    samples: list[list[Sample]] = [[] for _ in trials]
    began = time.monotonic()
    while not _has_enough(trials, len(samples[0]), spent_s := time.monotonic() - began):
        left = 1 if spent_s > MAX_SAMPLING_S * len(trials) else SAMPLES_ENOUGH - len(samples[0])
        share = random.SystemRandom().uniform(MIN_BURST_SHARE, 1.0)  # no candidate can foresee which call is the last
        lengths = [math.ceil(share * trial.burst) for trial in trials]
        take_turns(trials, samples, reference, lengths, max(_share_compared(trial, left) for trial in trials))
    return samples


def take_turns(
    trials: Sequence[Trial], samples: list[list[Sample]], reference: Reference, lengths: list[int], share: float
) -> None:
    """Take one more sample of each on the same inputs, in random order; of huge calls compare a ``share``."""
    cases = reference.timed_inputs(max(lengths)) if reference.is_huge else reference.timed_cases(max(lengths))
    turns = list(zip(trials, samples, lengths, strict=True))
    random.SystemRandom().shuffle(turns)
    for trial, taken, length in turns:
        with contextlib.nullcontext() if trial is trials[0] else opponent_errors_as_machine_faults():
            taken.append(trial.call_checked(cases[:length], share=share))


def equalise_bursts(trials: Sequence[Trial]) -> None:
    """Use equal burst lengths, so that waking up costs the same, unless one side is more than twice as slow.

    On the host a side that reuses its output memory has single calls whatever its speed: then both have.
    """
    shortest, longest = min(trial.burst for trial in trials), max(trial.burst for trial in trials)
    if longest <= MAX_BURST_RATIO * shortest or any(trial.on_host and trial.reuses_output_memory for trial in trials):
        for trial in trials:
            trial.burst = shortest


def _has_enough(trials: Sequence[Trial], count: int, spent_s: float) -> bool:
    """True if so many samples suffice; the score ``kernelbench`` takes as many as KernelBench if it can."""
    in_bursts = any(trial.burst > 1 for trial in trials)
    wanted, most = (BURSTS_ENOUGH, MAX_BURSTS) if in_bursts else (SAMPLES_ENOUGH, MAX_SAMPLES)
    if any(trial.compared < min(MIN_COMPARED, count) for trial in trials):
        return False
    if count >= most:
        return True
    if trials[0].is_kernelbench and not in_bursts and not trials[0].on_host:
        wanted = most
    if spent_s > MAX_SAMPLING_S * len(trials):
        wanted = MIN_SAMPLES
    least_s = SAMPLING_S if trials[0].on_host else SAMPLING_DEVICE_S
    return count >= wanted and spent_s > least_s * len(trials)


def _share_compared(trial: Trial, left: int) -> float:
    """Return the share of unanswered calls to compare, so that enough are compared in the end."""
    return max(COMPARED_SHARE, (MIN_COMPARED - trial.compared) / max(left, 1))
