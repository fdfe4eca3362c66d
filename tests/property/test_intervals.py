"""Intervals of medians: what they promise, on samples of any distribution."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.protocol.intervals import PLACEMENT_SHARE, median_interval, ratio_interval
from stark_worker.protocol.report import Timing

times = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=120)


@given(times)
def test_the_median_lies_within(samples):
    low, high = median_interval(samples)
    assert min(samples) <= low <= statistics.median(samples) <= high <= max(samples)


@given(times, st.floats(0.5, 0.99))
def test_more_confidence_is_never_a_narrower_interval(samples, confidence):
    low, high = median_interval(samples, confidence)
    surer = median_interval(samples, (1.0 + confidence) / 2.0)
    assert surer[0] <= low <= high <= surer[1]


@given(times)
def test_nothing_is_faster_than_itself(samples):
    assert ratio_interval(samples, samples) == (1.0 / (1.0 + PLACEMENT_SHARE), 1.0 + PLACEMENT_SHARE)


@given(times, st.floats(0.1, 0.9))
def test_what_is_always_faster_is_called_so_and_its_opponent_slower(samples, factor):
    quick = [factor * sample for sample in samples]
    assert ratio_interval(quick, samples)[1] < 1.0 < ratio_interval(samples, quick)[0]


@given(times, times, st.floats(0.0, 1e3), st.floats(0.0, 1e3))
def test_what_is_unsure_about_a_timing_widens_what_it_is_compared_by(samples, opponents, mine_ms, theirs_ms):
    count = min(len(samples), len(opponents))
    sure = Timing(tuple(samples[:count])), Timing(tuple(opponents[:count]))
    low, high = sure[0].ratio_to(sure[1])
    wider = replace(sure[0], unsure_ms=mine_ms).ratio_to(replace(sure[1], unsure_ms=theirs_ms))
    unsure = mine_ms / sure[0].median_ms + theirs_ms / sure[1].median_ms
    by = 1.0 + unsure / (1.0 + PLACEMENT_SHARE)
    assert wider == pytest.approx((low / by, high * by))


@pytest.mark.parametrize("count", [10, 30, 100])
@pytest.mark.parametrize(
    "draw", [random.Random.random, lambda r: r.lognormvariate(0, 1), lambda r: r.choice((1, 2, 9))]
)
def test_it_covers_the_true_median_as_often_as_it_says(count, draw):
    chance = random.Random(f"{count}")
    true = statistics.median([draw(chance) for _ in range(20_001)])
    runs = [median_interval([draw(chance) for _ in range(count)], 0.9) for _ in range(2_000)]
    covered = sum(low <= true * (1 + 1e-2) and high >= true * (1 - 1e-2) for low, high in runs) / len(runs)
    assert covered > 0.88


def test_few_samples_say_little():
    assert median_interval([3.0]) == (3.0, 3.0)
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert all(map(math.isfinite, Timing((1.0, 2.0)).interval_ms))
