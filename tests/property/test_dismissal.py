"""A candidate is dismissed only if it is surely slower than the best one by the whole ratio."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stark_worker.protocol.intervals import median_interval
from stark_worker.timing.measurement import DISMISSED_RATIO, MIN_SAMPLES, is_dismissed

TIMES = st.floats(1e-3, 1e4)
SAMPLES = st.lists(TIMES, min_size=MIN_SAMPLES, max_size=60)


@given(SAMPLES, TIMES)
def test_the_whole_interval_is_beyond_the_ratio(samples, best_ms):
    low, high = median_interval(samples)
    if is_dismissed(samples, best_ms):
        assert high >= low > DISMISSED_RATIO * best_ms
    else:
        assert low <= DISMISSED_RATIO * best_ms


@given(SAMPLES, TIMES, st.floats(1.0, 10.0))
def test_a_slower_candidate_is_dismissed_too_and_a_better_leader_dismisses_more(samples, best_ms, factor):
    if is_dismissed(samples, best_ms):
        assert is_dismissed([factor * each for each in samples], best_ms)
        assert is_dismissed(samples, best_ms / factor)


@given(st.lists(TIMES, max_size=MIN_SAMPLES - 1), TIMES)
def test_few_samples_dismiss_nothing(samples, best_ms):
    assert not is_dismissed(samples, best_ms)


@given(SAMPLES)
def test_nothing_is_dismissed_before_there_is_a_best_one(samples):
    assert not is_dismissed(samples, None)
