from stark_worker.sampling import _longer_alone
from stark_worker.timing import Sample, median_device_ms

CLOCKS = [median_device_ms, median_device_ms]


def told(*times_ms: float) -> list[Sample]:
    return [Sample(1.0, 0.0, ms) for ms in times_ms]


def longer_alone(alone_ms: list[float], row_ms: float, rivals_alone_ms: float, rivals_row_ms: float) -> bool:
    alone = [told(*alone_ms), told(*[rivals_alone_ms] * len(alone_ms))]
    return _longer_alone(alone, [told(row_ms), told(rivals_row_ms)], CLOCKS, slack_ms=0.005)


def test_who_takes_longer_by_itself_works_ahead_in_a_row():
    assert longer_alone([0.023] * 15, 0.0109, rivals_alone_ms=0.0225, rivals_row_ms=0.037)
    assert not longer_alone([0.0041] * 15, 0.0047, rivals_alone_ms=0.0041, rivals_row_ms=0.0047)


def test_what_a_rival_takes_longer_by_itself_is_no_fault():
    assert longer_alone([0.3] * 15, 0.2, rivals_alone_ms=0.2, rivals_row_ms=0.2)
    assert not longer_alone([0.3] * 15, 0.2, rivals_alone_ms=0.3, rivals_row_ms=0.21)


def test_calls_that_were_held_up_do_not_count_as_long_as_a_quarter_was_not():
    assert not longer_alone([0.2] * 5 + [0.9] * 10, 0.2, rivals_alone_ms=0.2, rivals_row_ms=0.2)
    assert longer_alone([0.2] * 2 + [0.9] * 13, 0.2, rivals_alone_ms=0.2, rivals_row_ms=0.2)
