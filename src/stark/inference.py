"""How sure one can be of a figure: means by bootstrap, rates by Wilson's interval, differences by a permutation test.
Pure; the same input gives the same answer."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from random import Random

RESAMPLES = 1_000
FLIPS = 20_000
EXACT_UP_TO = 14  # pairs; from there on, signs are flipped at random
FEWEST = 5  # tasks; with fewer, resampling shows a fraction of the doubt there is

Bounds = tuple[float, float]

Statistic = Callable[[Sequence[float]], float]


def interval(
    groups: Sequence[Sequence[float]], statistic: Statistic = statistics.fmean, level: float = 0.95
) -> Bounds | None:
    """A bootstrap interval for a figure of tasks with several seeds each: tasks are drawn, then seeds within each.

    None where resampling cannot tell: of fewer than FEWEST tasks, and of values that are all the same.
    """
    flat = list(itertools.chain.from_iterable(groups))
    if len(groups) < FEWEST or len(set(flat)) == 1:
        return None
    found = sorted(statistic([flat[place] for place in draw]) for draw in _draws(tuple(map(len, groups))))
    tail = round((1 - level) / 2 * RESAMPLES)
    return found[tail], found[-1 - tail]


def rate_interval(groups: Sequence[Sequence[float]], level: float = 0.95) -> Bounds:
    """Wilson's interval for a rate, the mean of values from 0 to 1. It leaves doubt at 0 and 1 too, where resampling
    shows none. The seeds of a task are no independent evidence: the trials are the tasks, so it is rather too wide."""
    rate = statistics.fmean(itertools.chain.from_iterable(groups))
    trials = len(groups)
    z = statistics.NormalDist().inv_cdf((1 + level) / 2)
    spread = z * math.sqrt(rate * (1 - rate) / trials + (z / (2 * trials)) ** 2)
    middle, scale = rate + z * z / (2 * trials), 1 + z * z / trials
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


@functools.lru_cache(maxsize=4)
def _draws(sizes: tuple[int, ...]) -> list[list[int]]:
    """Which values each resample takes. The figures of the same runs are all resampled alike, so they share this."""
    rng = Random(len(sizes))
    ends = list(itertools.accumulate(sizes))
    groups = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return [
        [place for group in rng.choices(groups, k=len(groups)) for place in rng.choices(group, k=len(group))]
        for _ in range(RESAMPLES)
    ]


def permutation_p(differences: Sequence[float]) -> float:
    """Two-sided p of paired differences under the hypothesis that their signs are chance. Exact for few pairs."""
    observed = abs(sum(differences)) * (1 - 1e-12)  # rounding must not make the observed signs look rare
    if len(differences) <= EXACT_UP_TO:
        signs = itertools.product((1, -1), repeat=len(differences))
        sums = [abs(sum(map(float.__mul__, map(float, sign), differences))) for sign in signs]
        return sum(total >= observed for total in sums) / len(sums)
    rng = Random(len(differences))
    hits = sum(
        abs(sum(value if rng.random() < 0.5 else -value for value in differences)) >= observed for _ in range(FLIPS)
    )
    return (hits + 1) / (FLIPS + 1)


def least_p(pairs: int) -> float:
    """The smallest p so many pairs can have: all signs alike, one way or the other."""
    return 2.0 ** (1 - pairs)
