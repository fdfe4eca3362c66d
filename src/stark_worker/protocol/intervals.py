"""Confidence intervals of medians, without an assumption about the distribution of times.

The true median lies between the k-th smallest and the k-th largest of n samples with a probability that follows from
coin tosses alone. Two models timed in turns on the same inputs are compared by the ratios of their paired times. An
allowance covers what more samples do not average out: the memory of two processes lies in different places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

CONFIDENCE = 0.99
PLACEMENT_SHARE = 0.005  # the times of the same kernel in two processes differ by up to this share


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the bounds of the median; with few samples, the smallest and the largest."""
    ordered = sorted(samples)
    skipped = _count_skipped(len(ordered), 1.0 - confidence)
    return ordered[skipped], ordered[-1 - skipped]


def ratio_interval(
    samples: Sequence[float], opponent: Sequence[float], unsure_share: float = 0.0
) -> tuple[float, float]:
    """Return the bounds of the median of a candidate's times divided by its opponent's."""
    low, high = median_interval([mine / theirs for mine, theirs in zip(samples, opponent, strict=True)])
    allowance = 1.0 + PLACEMENT_SHARE + unsure_share
    return low / allowance, high * allowance


def _count_skipped(count: int, max_error: float) -> int:
    """Return how many samples at each end lie outside the interval without exceeding the error."""
    skipped, error = 0, 2.0 / 2.0**count  # the chance that all samples lie on one side
    while skipped < (count - 1) // 2:
        error += 2.0 * math.comb(count, skipped + 1) / 2.0**count
        if error > max_error:
            break
        skipped += 1
    return skipped
