"""The time below which nothing can have been computed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stark_worker.device.cuda import MAX_BANDWIDTH_RATIO, lower_bound_ms

SIZES = st.integers(0, 2**40)


@given(SIZES, SIZES, st.integers(1, 2**40))
def test_nothing_is_written_faster_than_the_memory_can_take_it(written, cached, bytes_per_ms):
    assert lower_bound_ms(written, cached, bytes_per_ms) <= written / bytes_per_ms / MAX_BANDWIDTH_RATIO
    assert lower_bound_ms(min(written, cached), cached, bytes_per_ms) == 0.0


def test_a_device_that_does_not_tell_its_bandwidth_has_no_floor():
    assert lower_bound_ms(2**40, 0, 0) == 0.0
