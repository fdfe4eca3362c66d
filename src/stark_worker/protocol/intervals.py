"""How sure a measurement is: intervals that assume nothing about how times are distributed. No torch.

Between the k-th smallest and the k-th largest of n samples lies the true median with a probability that follows from
coin tosses alone. Two models that took turns on the same inputs are compared by the ratios of their paired times, with
an allowance for what no number of samples averages out: the memory of two processes lies in different places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

CONFIDENCE = 0.99
PLACEMENT = 0.005  # the share by which the same kernel in two processes may differ


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Where the median lies; from the smallest to the largest where there are too few samples to say more."""
    ordered = sorted(samples)
    left_out = _left_out(len(ordered), 1.0 - confidence)
    return ordered[left_out], ordered[-1 - left_out]


def ratio_interval(samples: Sequence[float], rivals: Sequence[float], unsure: float = 0.0) -> tuple[float, float]:
    """Where the median of a candidate's time divided by its rival's lies, which may be off by an ``unsure`` share."""
    low, high = median_interval([mine / theirs for mine, theirs in zip(samples, rivals, strict=True)])
    allowance = 1.0 + PLACEMENT + unsure
    return low / allowance, high * allowance


def _left_out(count: int, doubt: float) -> int:
    """How many samples at either end can be left out without exceeding the doubt."""
    left_out, outside = 0, 2.0 / 2.0**count  # the chance that all samples lie on one side
    while left_out < (count - 1) // 2:
        outside += 2.0 * math.comb(count, left_out + 1) / 2.0**count
        if outside > doubt:
            break
        left_out += 1
    return left_out
