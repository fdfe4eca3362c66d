"""How sure one can be of a figure: intervals by bootstrap, differences by a permutation test. Pure; the same input
gives the same answer."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from random import Random

RESAMPLES = 1_000
FLIPS = 20_000
EXACT_UP_TO = 14  # pairs; from there on, signs are flipped at random

Statistic = Callable[[Sequence[float]], float]


def interval(
    groups: Sequence[Sequence[float]], statistic: Statistic = statistics.fmean, level: float = 0.95
) -> tuple[float, float]:
    """A bootstrap interval for a figure of tasks with several seeds each: tasks are drawn, then seeds within each."""
    rng = Random(len(groups))
    single = all(len(group) == 1 for group in groups)
    flat = [group[0] for group in groups]
    found = sorted(
        statistic(
            rng.choices(flat, k=len(flat))
            if single
            else [value for group in rng.choices(groups, k=len(groups)) for value in rng.choices(group, k=len(group))]
        )
        for _ in range(RESAMPLES)
    )
    tail = round((1 - level) / 2 * RESAMPLES)
    return found[tail], found[-1 - tail]


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
