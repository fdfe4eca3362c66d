"""The time below which nothing can have been computed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stark_worker.device.cuda import MAX_BANDWIDTH_RATIO, lower_bound_ms

SIZES = st.integers(0, 2**40)


@given(SIZES, SIZES, SIZES, st.integers(1, 2**40))
def test_nothing_is_moved_faster_than_the_memory_can(written, read, cached, bytes_per_ms):
    assert lower_bound_ms(written, read, cached, bytes_per_ms) <= (written + read) / bytes_per_ms / MAX_BANDWIDTH_RATIO
    assert lower_bound_ms(min(written, cached), 0, cached, bytes_per_ms) == 0.0


def test_a_large_output_takes_its_time_beyond_the_cache():
    assert lower_bound_ms(3_000, 500, 1_000, 100) == 25 / MAX_BANDWIDTH_RATIO


def test_a_device_that_does_not_report_its_bandwidth_has_no_floor():
    assert lower_bound_ms(2**40, 2**40, 0, 0) == 0.0
