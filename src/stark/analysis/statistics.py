"""Intervals for means (Student's t) and rates (Wilson), permutation tests for differences, sign tests for outcomes.

Pure: the same input gives the same answer.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from random import Random

SIGNIFICANCE_LEVEL = 0.05  # intervals cover the rest
RANDOM_FLIPS = 20_000
MAX_EXACT_PAIRS = 14  # with more, signs are flipped at random
MIN_TASKS = 5  # for the interval of a mean: with fewer it depends too much on the normal distribution
# With fewer pairs not even equal signs are significant.
MIN_PAIRS = next(pairs for pairs in itertools.count(1) if 2.0 ** (1 - pairs) < SIGNIFICANCE_LEVEL)
ROUNDING_ERROR = 1e-9  # smaller differences count as none

Bounds = tuple[float, float]


def mean_interval(groups: Sequence[Sequence[float]]) -> Bounds | None:
    """Student's interval for the mean of tasks with several seeds each, assuming roughly normal values.

    The tasks are the trials, so the interval includes the spread of seeds. None for fewer than MIN_TASKS tasks and for
    tasks that are all equal.
    """
    if len(groups) < MIN_TASKS:
        return None
    flat = list(itertools.chain.from_iterable(groups))
    mean, size = statistics.fmean(flat), len(flat) / len(groups)
    # How far each task pulls the mean; with equal seed counts, the distance of its own mean from the common one.
    pulls = [sum(value - mean for value in group) / size for group in groups]
    error = statistics.stdev(pulls) / math.sqrt(len(groups))
    reach = _student_quantile(len(groups) - 1) * error
    return (mean - reach, mean + reach) if error > ROUNDING_ERROR else None


def rate_interval(groups: Sequence[Sequence[float]]) -> Bounds:
    """Wilson's interval for a rate, the mean of values from 0 to 1. It is not empty at 0 and 1.

    The tasks are the trials, because the seeds of a task are not independent; the interval is rather too wide.
    """
    rate = statistics.fmean(itertools.chain.from_iterable(groups))
    trials = len(groups)
    z = statistics.NormalDist().inv_cdf(1 - SIGNIFICANCE_LEVEL / 2)
    spread = z * math.sqrt(rate * (1 - rate) / trials + (z / (2 * trials)) ** 2)
    middle, scale = rate + z * z / (2 * trials), 1 + z * z / trials
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def permutation_test(differences: Sequence[float]) -> tuple[float, Bounds | None]:
    """Two-sided p that the signs of paired differences are chance, and the interval of means the test accepts.

    0 lies in the interval exactly if p is not below SIGNIFICANCE_LEVEL. Exact for few pairs. There is no interval for
    fewer than MIN_PAIRS pairs nor for differences that are all equal.
    """
    spans = [_accepted_means(differences, flips) for flips in _choose_flips(len(differences))]
    p = sum(low <= 0 <= high for low, high in spans) / len(spans)
    last = math.ceil(SIGNIFICANCE_LEVEL * len(spans)) - 1
    low, high = sorted(low for low, _ in spans)[last], sorted((high for _, high in spans), reverse=True)[last]
    has_bounds = math.isfinite(low) and max(differences) - min(differences) > ROUNDING_ERROR
    return p, (low, high) if has_bounds else None


def count_differing(differences: Sequence[float]) -> int:
    """Count the pairs that differ. With fewer than MIN_PAIRS, no permutation test is significant."""
    return sum(abs(value) > ROUNDING_ERROR for value in differences)


def sign_test(one: int, other: int) -> float:
    """Two-sided p that tasks solved by one side alone fall to either side by chance: McNemar's exact test."""
    tail = sum(math.comb(one + other, fewer) for fewer in range(min(one, other) + 1))
    return min(1.0, tail / 2.0 ** (one + other - 1))


def _student_quantile(freedom: int) -> float:
    """Two-sided quantile of Student's t: all but SIGNIFICANCE_LEVEL lies between minus and plus this value."""
    low, high = 0.0, math.pi / 2
    while low < (angle := (low + high) / 2) < high:
        low, high = (low, angle) if _student_share(angle, freedom) > 1 - SIGNIFICANCE_LEVEL else (angle, high)
    return math.tan(angle) * math.sqrt(freedom)


def _student_share(angle: float, freedom: int) -> float:
    """Share of Student's t within tan(angle) * sqrt(freedom): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    odd = freedom % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _choose_flips(pairs: int) -> Iterator[Sequence[bool]]:
    """Yield the signs to flip, none first. The first sign is never flipped: flipping all others is equivalent."""
    if pairs <= MAX_EXACT_PAIRS:
        yield from ((False, *rest) for rest in itertools.product((False, True), repeat=pairs - 1))
        return
    rng = Random(pairs)
    yield (False,) * pairs
    for _ in range(RANDOM_FLIPS):
        yield (False, *rng.choices((False, True), k=pairs - 1))


def _accepted_means(differences: Sequence[float], flips: Sequence[bool]) -> Bounds:
    """The means under which these flips are at least as extreme as the observation.

    Around a mean, the flipped differences sum to a and the others to b. |b - a| >= |b + a| holds if a and b have
    opposite signs: if the mean lies between the means of the two parts. Without flips, every mean fits.
    """
    flipped = list(itertools.compress(differences, flips))
    if not flipped:
        return -math.inf, math.inf
    rest = (math.fsum(differences) - math.fsum(flipped)) / (len(differences) - len(flipped))
    mean = math.fsum(flipped) / len(flipped)
    return min(mean, rest) - ROUNDING_ERROR, max(mean, rest) + ROUNDING_ERROR
