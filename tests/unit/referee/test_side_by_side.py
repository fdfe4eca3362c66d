from typing import Any

import pytest

from stark_worker.referee.side_by_side import Measurement, single_call_excess_ms
from stark_worker.timing.device_clock import median_device_ms
from stark_worker.timing.sample import Sample

NOBODY: Any = None


def told(*times_ms: float) -> list[Sample]:
    return [Sample(1.0, 0.0, ms) for ms in times_ms]


def longer(by_itself_ms: list[float], row_ms: float, opponents_ms: float, opponents_row_ms: float) -> float:
    mine = Measurement(NOBODY, told(row_ms), told(*by_itself_ms), confirmed=True)
    opponent = Measurement(NOBODY, told(opponents_row_ms), told(*[opponents_ms] * 15), confirmed=True)
    return single_call_excess_ms(mine, opponent, median_device_ms, median_device_ms, slack_ms=0.002)


def test_what_a_call_takes_longer_by_itself_counts():
    assert longer([0.022] * 15, 0.010, opponents_ms=0.022, opponents_row_ms=0.037) == pytest.approx(0.010)
    assert longer([0.0041] * 15, 0.0047, opponents_ms=0.0041, opponents_row_ms=0.0047) == 0.0


def test_what_an_opponent_takes_longer_by_itself_is_no_fault():
    assert longer([0.062] * 15, 0.04, opponents_ms=0.05, opponents_row_ms=0.05) == pytest.approx(0.02)
    assert longer([0.062] * 15, 0.04, opponents_ms=0.07, opponents_row_ms=0.05) == 0.0


def test_calls_that_were_held_up_do_not_count_as_long_as_a_quarter_was_not():
    assert longer([0.2] * 4 + [0.902] * 11, 0.2, opponents_ms=0.2, opponents_row_ms=0.2) == 0.0
    assert longer([0.2] * 3 + [0.902] * 12, 0.2, opponents_ms=0.2, opponents_row_ms=0.2) == pytest.approx(0.7)


def test_who_tells_nothing_of_calls_in_a_row_gains_nothing_by_it():
    assert longer([0.202] * 15, 0.0, opponents_ms=0.2, opponents_row_ms=0.2) == pytest.approx(0.2)
