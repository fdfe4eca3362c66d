import pytest

from stark_worker.sampling import Slack, times_longer
from stark_worker.timing import Sample, median_device_ms

CLOCKS = [median_device_ms, median_device_ms]
SLACK = Slack(ms=0.005, waking_ms=0.02)


def told(*times_ms: float) -> list[Sample]:
    return [Sample(1.0, 0.0, ms) for ms in times_ms]


def longer(alone_ms: list[float], row_ms: float, rivals_alone_ms: float, rivals_row_ms: float) -> float:
    alone = [told(*alone_ms), told(*[rivals_alone_ms] * len(alone_ms))]
    return times_longer(alone, [told(row_ms), told(rivals_row_ms)], CLOCKS, SLACK)


def test_what_a_call_takes_by_itself_counts_where_that_is_longer_than_in_a_row():
    assert longer([0.022] * 15, 0.011, rivals_alone_ms=0.022, rivals_row_ms=0.037) == pytest.approx(2.0)
    assert longer([0.0041] * 15, 0.0047, rivals_alone_ms=0.0041, rivals_row_ms=0.0047) == 1.0


def test_what_a_rival_takes_longer_by_itself_is_no_fault_up_to_what_waking_up_takes():
    assert longer([0.06] * 15, 0.04, rivals_alone_ms=0.05, rivals_row_ms=0.05) == pytest.approx(1.5)
    assert longer([0.06] * 15, 0.04, rivals_alone_ms=0.07, rivals_row_ms=0.05) == 1.0
    assert longer([0.08] * 15, 0.04, rivals_alone_ms=0.09, rivals_row_ms=0.05) == pytest.approx(1.5)


def test_calls_that_were_held_up_do_not_count_as_long_as_a_quarter_was_not():
    assert longer([0.2] * 5 + [0.9] * 10, 0.2, rivals_alone_ms=0.2, rivals_row_ms=0.2) == 1.0
    assert longer([0.2] * 2 + [0.9] * 13, 0.2, rivals_alone_ms=0.2, rivals_row_ms=0.2) == pytest.approx(4.5)


def test_who_tells_nothing_of_calls_in_a_row_gains_nothing_by_it():
    assert longer([0.2] * 15, 0.0, rivals_alone_ms=0.2, rivals_row_ms=0.2) > 1.0
