"""How sure one can be of a figure: means by Student's t, rates by Wilson's interval, differences by a permutation test,
outcomes by a sign test. Pure; the same input gives the same answer."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from random import Random

SIGNIFICANT = 0.05  # below this p a difference is called one; intervals leave as much out
FLIPS = 20_000
EXACT_UP_TO = 14  # pairs; from there on, signs are flipped at random
FEWEST = 5  # tasks; of fewer, the interval of a mean says more about the normal distribution than about them
ENOUGH = next(pairs for pairs in itertools.count(1) if 2.0 ** (1 - pairs) < SIGNIFICANT)  # p where all signs are alike
TIE = 1e-9  # differences up to here are rounding: none

Bounds = tuple[float, float]


def interval(groups: Sequence[Sequence[float]]) -> Bounds | None:
    """Student's interval for the mean of tasks with several seeds each. The tasks are the trials, so it has the doubt
    that seeds leave in it. It holds for tasks whose values are about normal.

    None where it cannot tell: of fewer than FEWEST tasks, and of tasks that are all alike.
    """
    if len(groups) < FEWEST:
        return None
    flat = list(itertools.chain.from_iterable(groups))
    mean, size = statistics.fmean(flat), len(flat) / len(groups)
    # how far each task pulls the mean: with as many seeds in all, its own mean's distance from that of all
    pulls = [sum(value - mean for value in group) / size for group in groups]
    error = statistics.stdev(pulls) / math.sqrt(len(groups))
    reach = _student(len(groups) - 1) * error
    return (mean - reach, mean + reach) if error > TIE else None


def rate_interval(groups: Sequence[Sequence[float]]) -> Bounds:
    """Wilson's interval for a rate, the mean of values from 0 to 1. It leaves doubt at 0 and 1 too, where values show
    none. The seeds of a task are no independent evidence: the trials are the tasks, so it is rather too wide."""
    rate = statistics.fmean(itertools.chain.from_iterable(groups))
    trials = len(groups)
    z = statistics.NormalDist().inv_cdf(1 - SIGNIFICANT / 2)
    spread = z * math.sqrt(rate * (1 - rate) / trials + (z / (2 * trials)) ** 2)
    middle, scale = rate + z * z / (2 * trials), 1 + z * z / trials
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def permutation_test(differences: Sequence[float]) -> tuple[float, Bounds | None]:
    """Two-sided p of the hypothesis that the signs of paired differences are chance, and the interval of all means that
    the same test does not reject: 0 lies in it exactly where p is not below SIGNIFICANT. Exact for few pairs.

    There is no interval of fewer than ENOUGH pairs, where no mean is rejected, nor of differences that are all alike.
    """
    spans = [_span(differences, flips) for flips in _flips(len(differences))]
    p = sum(low <= 0 <= high for low, high in spans) / len(spans)
    last = math.ceil(SIGNIFICANT * len(spans)) - 1
    low, high = sorted(low for low, _ in spans)[last], sorted((high for _, high in spans), reverse=True)[last]
    told = math.isfinite(low) and max(differences) - min(differences) > TIE
    return p, (low, high) if told else None


def differing(differences: Sequence[float]) -> int:
    """How many pairs differ at all. The signs of the others decide nothing: with fewer than ENOUGH that do, no
    permutation test finds anything."""
    return sum(abs(value) > TIE for value in differences)


def sign_p(one: int, other: int) -> float:
    """Two-sided p of the hypothesis that a task which one side alone has solved is either's by chance: McNemar's test,
    exact."""
    tail = sum(math.comb(one + other, fewer) for fewer in range(min(one, other) + 1))
    return min(1.0, tail / 2.0 ** (one + other - 1))


def _student(freedom: int) -> float:
    """Between minus and plus this lies all but SIGNIFICANT of Student's t with so many degrees of freedom."""
    low, high = 0.0, math.pi / 2
    while low < (angle := (low + high) / 2) < high:
        low, high = (low, angle) if _within(angle, freedom) > 1 - SIGNIFICANT else (angle, high)
    return math.tan(angle) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """How much of Student's t lies within the tangent of an angle times the root of the degrees of freedom: a finite
    sum, see 26.7.3 and 26.7.4 of Abramowitz and Stegun."""
    odd = freedom % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _flips(pairs: int) -> Iterator[Sequence[bool]]:
    """Whose signs are flipped, none to begin with. Flipping all the others comes to the same, so the first never is."""
    if pairs <= EXACT_UP_TO:
        yield from ((False, *rest) for rest in itertools.product((False, True), repeat=pairs - 1))
        return
    rng = Random(pairs)
    yield (False,) * pairs
    for _ in range(FLIPS):
        yield (False, *rng.choices((False, True), k=pairs - 1))


def _span(differences: Sequence[float], flips: Sequence[bool]) -> Bounds:
    """Which means these flips speak for. About a mean, those that are flipped sum up to a, the others to b, and what
    was observed is no rarer than the flips where |b - a| >= |b + a|: where one of them is not above and the other not
    below 0. So the supposed mean lies between the means of the two; where nothing is flipped, it may be any."""
    flipped = list(itertools.compress(differences, flips))
    if not flipped:
        return -math.inf, math.inf
    rest = (math.fsum(differences) - math.fsum(flipped)) / (len(differences) - len(flipped))
    mean = math.fsum(flipped) / len(flipped)
    return min(mean, rest) - TIE, max(mean, rest) + TIE
