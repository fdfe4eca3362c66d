"""Two clocks: which of them is reported, and when they contradict each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.protocol.errors import Failure
from stark_worker.timing.device_clock import confirmed_device_times, read_device_ms
from stark_worker.timing.overhead import (
    HIDDEN_LAUNCH_MS,
    MAX_LOADED_MS,
    MIN_JITTER_MS,
    WRITE_SLACK_MS,
    WRITE_SLACK_SHARE,
    Overhead,
)
from stark_worker.timing.sample import Sample

EMPTY = [Sample(0.10 + 0.001 * number, 0.05, 0.0) for number in range(20)]
OVERHEAD = Overhead.of(EMPTY, [Sample(0.08, 0.05, 0.0, length=0)] * 20)


def test_two_handshakes_of_five_that_were_held_up_do_not_count():
    overhead = Overhead.of([Sample(ms, 0.05, 0.0) for ms in (4.1, 0.1, 0.101, 3.9, 0.099)], [])
    assert overhead.single_ms == pytest.approx(0.101)
    assert overhead.jitter_ms == MIN_JITTER_MS


def samples(outside_ms: float, device_ms: float, late_ms: float = 0.05) -> list[Sample]:
    return [Sample(outside_ms, late_ms, device_ms)] * 30


def test_the_devices_times_count_where_the_referees_clock_confirms_them():
    assert confirmed_device_times(samples(1.11, 1.0), OVERHEAD) == (1.0,) * 30


def test_times_that_the_referees_clock_contradicts_are_refused():
    with pytest.raises(Failure, match="clocks disagree") as refused:
        confirmed_device_times(samples(1.11, 0.5), OVERHEAD)
    assert refused.value.rule == "clock_disagreement"


@pytest.mark.parametrize("device_ms", [0.6, 1.6], ids=["too short", "too long"])
def test_the_referees_clock_alone_counts_where_the_two_differ(device_ms):
    assert confirmed_device_times(samples(1.11, device_ms), OVERHEAD) is None


def test_a_burst_is_timed_from_the_outside_without_its_own_handshake():
    assert OVERHEAD.per_call_ms(Sample(0.08 + 64 * 0.02, 1.0, 1.2, length=64)) == pytest.approx(0.02)


def test_the_referees_clock_alone_counts_where_the_handshake_is_too_much_of_a_sample():
    def burst(per_call_ms: float, length: int) -> list[Sample]:
        return [Sample(0.08 + per_call_ms * length, 0.05, per_call_ms, length=length)] * 15

    assert not OVERHEAD.confirms(samples(0.6, 0.5))
    assert OVERHEAD.confirms(samples(0.9, 0.8))
    assert not OVERHEAD.confirms(burst(0.005, 64))
    assert OVERHEAD.confirms(burst(0.1, 64))


def test_the_device_confirmed_by_a_burst_is_timed_without_the_launch_that_is_waited_for():
    launched = [Sample(0.08 + 0.4 + 32 * 0.15, 0.05, 0.15, length=32)] * 15
    assert confirmed_device_times(launched, OVERHEAD) == (0.15,) * 15


def test_the_referees_clock_counts_where_a_burst_hardly_confirms_the_devices():
    doubtful = [Sample(0.08 + 10 * 1.0, 0.05, 0.7, length=10)] * 15
    assert confirmed_device_times(doubtful, OVERHEAD) is None
    assert OVERHEAD.unsure_ms(doubtful, equal_bursts=True) == pytest.approx(OVERHEAD.jitter_ms / 10)
    assert OVERHEAD.unsure_ms(doubtful, equal_bursts=False) == pytest.approx(OVERHEAD.doubt_ms / 10)
    assert OVERHEAD.unsure_ms(samples(0.3, 0.2), equal_bursts=True) == OVERHEAD.doubt_ms
    with pytest.raises(Failure, match="clocks disagree"):
        confirmed_device_times([Sample(0.08 + 10 * 1.0, 0.05, 0.3, length=10)] * 15, OVERHEAD)


def test_how_many_calls_make_a_sample():
    on_host = [Sample(7.0, 0.05)] * 9
    assert OVERHEAD.burst_length(on_host, 16) == 3
    assert OVERHEAD.burst_length(on_host, 2) == 2
    assert OVERHEAD.burst_length([Sample(60.0, 0.05)], 16) == 1
    assert OVERHEAD.burst_length(samples(0.2, 0.1), 64) == 64
    assert OVERHEAD.burst_length(samples(1.1, 1.0), 64) == 10
    assert OVERHEAD.burst_length(samples(1.1, 1.0), 4) == 4
    assert OVERHEAD.burst_length(samples(7.1, 7.0), 64) == 1


def test_what_a_loaded_candidate_adds_to_the_handshake_counts_within_bounds():
    for took_ms, taken_off_ms in ((0.13, 0.13), (9.0, 0.18), (0.01, 0.08)):
        overhead = OVERHEAD.with_candidate([Sample(took_ms, 0.0, length=0)] * 5)
        assert overhead.per_call_ms(Sample(2.38, 0.0, 0.2, length=10)) == pytest.approx((2.38 - taken_off_ms) / 10)


def test_a_candidate_has_no_more_taken_off_than_what_it_is_compared_with():
    opponent, slow, quick = (
        OVERHEAD.with_candidate([Sample(took_ms, 0.0, length=0)] * 5) for took_ms in (0.13, 0.18, 0.1)
    )
    burst = Sample(2.38, 0.0, 0.2, length=10)
    assert slow.cap_loaded_at(opponent).per_call_ms(burst) == opponent.per_call_ms(burst)
    assert quick.cap_loaded_at(opponent).per_call_ms(burst) == quick.per_call_ms(burst)


def test_launching_nothing_and_what_can_be_hidden_is_taken_off_what_calls_took_to_launch():
    singles, bursts = ([Sample(0.1, 0.0, 0.0, launch_ms=ms)] * 4 for ms in (0.2, 0.15))
    overhead = Overhead.of(singles, bursts)
    assert overhead.launching_ms(Sample(9.0, 0.0, 1.0, length=10, launch_ms=2.15)) == pytest.approx(
        0.15 - HIDDEN_LAUNCH_MS
    )
    assert overhead.launching_ms(Sample(9.0, 0.0, 1.0)) < 0.0


def test_no_more_calls_are_made_in_a_row_than_can_be_launched_in_time():
    slow = [Sample(0.2, 0.05, 0.1, launch_ms=1.0)]
    assert OVERHEAD.burst_length(slow, 64) == 10
    assert OVERHEAD.burst_length([Sample(0.2, 0.05, 0.1, launch_ms=0.1)], 64) == 64


def test_where_nothing_waits_the_handshake_is_another():
    singles, bursts, opened = ([Sample(0.1, 0.0, 0.0, launch_ms=ms)] * 4 for ms in (0.3, 0.25, 0.0))
    overhead = Overhead.of(singles, bursts, [replace(each, forward_ms=0.3) for each in opened]).without_gate()
    assert overhead.per_call_ms(Sample(1.3, 0.0, 1.0)) == pytest.approx(1.0)
    assert overhead.per_call_ms(Sample(4.25, 0.0, 1.0, length=4)) == pytest.approx(1.0)


def test_nothing_takes_no_time_at_all():
    assert OVERHEAD.per_call_ms(Sample(0.0, 0.0)) > 0


def test_work_that_is_put_off_counts():
    """All of it that takes longer than handing over, whichever clock is reported, but for how messages vary."""
    prompt, late = Sample(1.11, 0.05, 1.0), Sample(1.11, 2.05, 1.0)
    for times in (OVERHEAD.per_call_ms, lambda sample: confirmed_device_times([sample], OVERHEAD)[0]):
        assert times(late) == pytest.approx(times(prompt) + 2.0, abs=0.06)
    busy = Sample(1.11, 2.05, 1.0, own_copy_ms=2.0)  # a machine on which copying as much takes as long
    assert OVERHEAD.per_call_ms(busy) == OVERHEAD.per_call_ms(prompt)


def test_calls_in_a_row_are_given_one_message_to_be_handed_over():
    """What each of them would be given by itself, with a message each, is time to compute in."""
    singles, burst_calls = [Sample(0.1, 0.3)] * 4, [Sample(0.1, 0.3 + 7 * 0.05, length=8)] * 4
    overhead = Overhead.of(singles, singles, burst_calls=burst_calls)
    honest = Sample(0.1 + 8 * 1.0, 0.65, length=8)
    cheating = replace(honest, forward_ms=0.1 + 8 * 0.8, late_ms=0.65 + 8 * 0.2)
    assert overhead.per_call_ms(honest) == pytest.approx(1.0)
    assert overhead.per_call_ms(cheating) == pytest.approx(1.0, rel=0.01)
    assert Overhead.of(singles, singles).per_call_ms(cheating) == pytest.approx(0.8)


@pytest.mark.parametrize("length", [1, 8])
def test_who_computes_in_place_of_copying_takes_as_long_as_that_took(length):
    overhead = Overhead(single_ms=0.1, jitter_ms=0.05, burst_ms=0.1, copy_ms=3.2)
    honest = Sample(0.1 + 3.5 * length, 3.2 * length, own_copy_ms=3.0 * length, length=length)
    cheating = replace(honest, forward_ms=0.1 + 0.01 * length, late_ms=3.5 * length)
    assert overhead.per_call_ms(honest) == pytest.approx(3.5)
    assert overhead.per_call_ms(cheating) == pytest.approx(3.5, rel=0.05)


def test_what_the_device_is_said_to_have_taken_is_one_time_for_each_call():
    assert read_device_ms([0.5], 1) == 0.5
    assert read_device_ms([0.25, 0.75], 2) == 0.5
    assert read_device_ms([*[0.25] * 9, 0.3], 10) == 0.25  # the device was held up once
    assert read_device_ms([0.25, 0.25, 0.25, 9.0], 4) == 2.4375  # only a mean can be confirmed from outside
    assert read_device_ms([], 0) == 0.0
    for forged in (None, 0.5, "0.5", [], [0.5, 0.5], [-1.0], [float("nan")], [True], [[0.5]]):
        assert read_device_ms(forged, 1) == 0.0


@given(st.floats(0.0, 2.0), st.integers(2, 64), st.floats(0.0, MAX_LOADED_MS))
def test_what_a_burst_took_at_most_is_no_less_than_the_truth(true_ms, calls, hidden_ms):
    """Whatever of the handshake a candidate may leave out, up to what it may claim for itself."""
    overhead = Overhead(single_ms=1.0, jitter_ms=0.05, burst_ms=1.0 + hidden_ms, copy_ms=1.0)
    seen = Sample(1.0 + calls * true_ms, 1.0, device_ms=0.0, length=calls)
    assert overhead.upper_bound_ms(seen) >= true_ms


def test_what_holds_up_the_writing_of_inputs_counts_as_computing():
    singles = [Sample(0.1, 0.0, 0.0, writing_ms=0.2)] * 4
    overhead = Overhead.of(singles, []).with_writes([1.2] * 3, places=11)
    usual = Sample(0.1 + 10 * 0.5, 0.0, 0.5, length=10, writing_ms=1.1)
    held_up = replace(usual, writing_ms=1.1 * (1.0 + WRITE_SLACK_SHARE) + WRITE_SLACK_MS + 2.0)
    assert overhead.held_up_ms(usual) == 0.0
    assert overhead.held_up_ms(held_up) == pytest.approx(2.0)
    assert overhead.per_call_ms(held_up) == pytest.approx(overhead.per_call_ms(usual) + 0.2)
    assert confirmed_device_times([held_up] * 9, overhead) == pytest.approx((0.7,) * 9)


def test_what_may_have_been_done_while_inputs_were_written_is_doubted():
    """Large inputs of which little is read: all of a short call could hide in how much their writing varies."""
    overhead = Overhead(single_ms=0.1, jitter_ms=0.05, burst_ms=0.1, copy_ms=0.05, write_ms=4.0)
    short, long = (Sample(0.1 + ms, 0.05, device_ms=ms, writing_ms=4.1) for ms in (0.3, 3.0))
    assert overhead.held_up_ms(short) == 0.0
    assert not overhead.confirms([short] * 9)
    assert overhead.upper_bound_ms(short) == pytest.approx(0.3 + overhead.undetectable_ms(1))
    assert overhead.confirms([long] * 9)
