"""How many timed calls there are, of one candidate or of two in turns."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from stark_worker.faults import MachineryFault
from stark_worker.reference import Reference
from stark_worker.sandbox import Failure
from stark_worker.timing import LEAST_MS, Sample, median_device_ms
from stark_worker.trial import Trial

SAMPLES_FEW, SAMPLES_ENOUGH, SAMPLES_MOST = 5, 30, 100
BURSTS_ENOUGH, BURSTS_MOST = 15, 30
SHORTEST = 0.75  # of the longest burst
ALIKE = 2.0  # up to this ratio bursts are made equally long
ALONE = 15  # calls by themselves, after those in a row
ALONE_MS = 5.0  # on the host, of calls that take so long
AHEAD = 1.2  # how many times as long as in a row
SAMPLING_S, SAMPLING_DEVICE_S, SAMPLING_MOST_S = 2.0, 1.0, 10.0
COMPARED, COMPARED_LEAST = 0.1, 6  # the share of calls that are compared where not all are, and how many at least


class Slack(NamedTuple):
    """How much longer than in a row a call by itself may take, beyond a share, and how much at most waking up."""

    ms: float
    waking_ms: float


# A rival on a GPU can be held up by what a candidate left there, so that its waking up does not count beyond what an
# empty cache costs, or a handshake may differ by.
ON_HOST, ON_DEVICE, FROM_OUTSIDE = Slack(0.0, math.inf), Slack(0.005, 0.02), Slack(0.15, 0.15)


@contextlib.contextmanager
def no_fault_of_the_candidate() -> Iterator[None]:
    """A rival was judged before; what goes wrong with it now is nobody's fault who is judged."""
    try:
        yield
    except Failure as failure:
        raise MachineryFault(f"What the candidate is compared with failed: {failure.log}") from failure


def measure(trials: Sequence[Trial], reference: Reference) -> list[list[Sample]]:
    """Enough samples of each for a stable median, fewer of slow ones.

    Where there are two they take turns on the same inputs, so that whatever slows the machine slows both alike.
    """
    _make_alike(trials)
    samples = _sampled(trials, reference)
    trials[0].alone = _times_alone(trials, samples, reference)
    return samples


def _sampled(trials: Sequence[Trial], reference: Reference) -> list[list[Sample]]:
    samples: list[list[Sample]] = [[] for _ in trials]
    began = time.monotonic()
    while not _enough(trials, len(samples[0]), spent_s := time.monotonic() - began):
        left = 1 if spent_s > SAMPLING_MOST_S * len(trials) else SAMPLES_ENOUGH - len(samples[0])
        share = random.SystemRandom().uniform(SHORTEST, 1.0)  # nobody can foresee which call is the last
        _take_turns(trials, samples, reference, [math.ceil(share * trial.burst) for trial in trials], left)
    return samples


def _take_turns(
    trials: Sequence[Trial], samples: list[list[Sample]], reference: Reference, lengths: list[int], left: int
) -> None:
    """One more sample of each, on the same inputs, who is first by chance; of so many that are ``left``."""
    cases = reference.timed_questions(max(lengths)) if reference.huge else reference.timed_cases(max(lengths))
    turns = list(zip(trials, samples, lengths, strict=True))
    random.SystemRandom().shuffle(turns)
    for trial, taken, length in turns:
        with contextlib.nullcontext() if trial is trials[0] else no_fault_of_the_candidate():
            taken.append(trial.call_checked(cases[:length], share=_share_compared(trial, left)))


def _times_alone(trials: Sequence[Trial], in_a_row: list[list[Sample]], reference: Reference) -> float:
    """How many times as long as for one of several in a row a candidate takes for a call by itself; 1 where that is not
    for sure, or not more than for a rival.

    The inputs of them all are there from the beginning, so that what one call leaves idle, of cores or of a device, can
    compute the next. On the host, of calls that are as short as waking up takes, nothing can be said.
    """
    mine = trials[0]
    if len(trials) == 1 or mine.burst == 1:
        return 1.0
    alone: list[list[Sample]] = [[] for _ in trials]
    for count in range(ALONE):
        _take_turns(trials, alone, reference, [1] * len(trials), ALONE - count)
        if mine.on_host and mine.typical_ms(alone[0][-1:]) < ALONE_MS:
            return 1.0
    outside = [trial.typical_ms for trial in trials]
    if mine.on_host:
        return times_longer(alone, in_a_row, outside, ON_HOST)
    # Who waits for the device is seen on its clock launching what others launched before.
    told = times_longer(alone, in_a_row, [median_device_ms] * len(trials), ON_DEVICE) if mine.gated else 1.0
    return max(told, times_longer(alone, in_a_row, outside, FROM_OUTSIDE))


def times_longer(
    alone: list[list[Sample]],
    in_a_row: list[list[Sample]],
    clocks: Sequence[Callable[[list[Sample]], float]],
    slack: Slack,
) -> float:
    """The same by such a clock.

    To wake up takes time as well, a rival no less, and much of it now and then: the quickest quarter counts.
    """
    row_ms, rivals_row_ms = (max(clock(samples), LEAST_MS) for clock, samples in zip(clocks, in_a_row, strict=True))
    quick_ms, rivals_quick_ms = (
        statistics.quantiles([clock([sample]) for sample in samples], n=4)[0]
        for clock, samples in zip(clocks, alone, strict=True)
    )
    took_ms = quick_ms - min(max(rivals_quick_ms - rivals_row_ms, 0.0), slack.waking_ms)
    return took_ms / row_ms if took_ms > AHEAD * row_ms + slack.ms else 1.0


def _make_alike(trials: Sequence[Trial]) -> None:
    """Waking up weighs alike in bursts of one length. Where one is far slower, the others would drown in it."""
    shortest, longest = min(trial.burst for trial in trials), max(trial.burst for trial in trials)
    if longest <= ALIKE * shortest:
        for trial in trials:
            trial.burst = shortest


def _enough(trials: Sequence[Trial], count: int, spent_s: float) -> bool:
    """Whether so many samples will do; the score ``kernelbench`` takes as many as KernelBench if it can."""
    in_bursts = any(trial.burst > 1 for trial in trials)
    wanted, most = (BURSTS_ENOUGH, BURSTS_MOST) if in_bursts else (SAMPLES_ENOUGH, SAMPLES_MOST)
    if any(trial.compared < min(COMPARED_LEAST, count) for trial in trials):
        return False
    if count >= most:
        return True
    if trials[0].as_kernelbench and not in_bursts and not trials[0].on_host:
        wanted = most
    if spent_s > SAMPLING_MOST_S * len(trials):
        wanted = SAMPLES_FEW
    least_s = SAMPLING_S if trials[0].on_host else SAMPLING_DEVICE_S
    return count >= wanted and spent_s > least_s * len(trials)


def _share_compared(trial: Trial, left: int) -> float:
    """Of calls whose answers are yet to be computed: so many that of those that are left enough are compared."""
    return max(COMPARED, (COMPARED_LEAST - trial.compared) / max(left, 1))
