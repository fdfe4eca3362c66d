"""From what the referee's clock shows to times that count. Nothing is given away, and the impossible is refused."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.protocol.errors import Failure, MachineryFault, Outcome
from stark_worker.timing.measurement import (
    HIDDEN_LAUNCH_MS,
    LAUNCH_SHARE,
    MAX_DISTURBED,
    MAX_DISTURBED_SHARE,
    MAX_LATE_MS,
    MAX_WRITE_RATIO,
    MIN_MS,
    MIN_SWITCH_MS,
    MIN_SWITCH_SHARE,
    PROCESS_DOUBT_MS,
    Calibration,
    CallTimes,
    Measurement,
    describe_times,
    timing_of,
)

# As on an H200: two switches of processes, one before the done word and one after it.
EMPTY_CALL = CallTimes(total_ms=0.2924, done_ms=0.1460, launch_ms=0.04, writing_ms=0.05, flush_ms=0.06, probe_ms=0.009)
EMPTY = Calibration((EMPTY_CALL,) * 9)
SWITCH_MS = EMPTY_CALL.total_ms - EMPTY_CALL.done_ms - EMPTY_CALL.probe_ms

times_ms = st.floats(0.0, 1e4)
calls = st.builds(CallTimes, *[times_ms] * len(CallTimes._fields))


def delayed(call: CallTimes, empty: CallTimes) -> CallTimes:
    """The same call, if the device has to change to its process and back as for this one."""
    done_ms = call.done_ms + empty.done_ms
    return call._replace(done_ms=done_ms, total_ms=done_ms + call.total_ms + empty.total_ms)


in_time = calls.map(lambda call: delayed(call, EMPTY_CALL))
calibrations = st.builds(Calibration, *(st.lists(calls, min_size=least, max_size=12).map(tuple) for least in (1, 0)))


def gated(*timed: CallTimes, empty: Calibration = EMPTY, **more: object) -> Measurement:
    return Measurement(True, empty, timed, **more)


def lasting(ms: float) -> CallTimes:
    """A gated call of a kernel that takes so long."""
    return EMPTY_CALL._replace(total_ms=EMPTY_CALL.total_ms + ms, done_ms=EMPTY_CALL.done_ms + ms)


def median_of(found: Iterable[CallTimes], field: str) -> float:
    return statistics.median(getattr(call, field) for call in found)


def without_early(measured: Measurement) -> Measurement:
    known = (*measured.empty.calls, *measured.empty.moving)
    slowest = CallTimes(max(each.total_ms for each in known), max(each.done_ms for each in known))
    return replace(measured, calls=tuple(delayed(each, slowest) for each in measured.calls))


# --- gated


@pytest.mark.parametrize("ms", [0.005, 0.02, 2.0, 200.0])
def test_a_kernel_takes_what_it_takes_longer_than_an_empty_one(ms):
    assert timing_of(gated(*[lasting(ms)] * 9)).median_ms == pytest.approx(ms)


@given(calibrations, st.lists(calls, min_size=1, max_size=12))
def test_a_time_is_never_negative_nor_below_what_launching_took(empty, timed):
    measured = without_early(gated(*timed, empty=empty))
    timing = timing_of(measured)
    assert len(timing.samples_ms) == len(timed)
    assert min(timing.samples_ms) >= MIN_MS
    for sample, call in zip(timing.samples_ms, measured.calls, strict=True):
        assert sample >= call.done_ms - empty.median.done_ms
    launched_ms, free_ms = (median_of(each, "launch_ms") for each in (timed, empty.calls))
    assert timing.median_ms >= LAUNCH_SHARE * (launched_ms - free_ms) - HIDDEN_LAUNCH_MS - 1e-9


def test_launches_that_an_idle_device_hides_are_free_and_longer_ones_are_not():
    free_ms = EMPTY_CALL.launch_ms + HIDDEN_LAUNCH_MS / LAUNCH_SHARE
    hidden, seen = (lasting(0.01)._replace(launch_ms=ms) for ms in (free_ms, free_ms + 0.5 / LAUNCH_SHARE))
    assert timing_of(gated(hidden)).median_ms == pytest.approx(0.01)
    timing = timing_of(gated(seen))
    assert timing.median_ms == pytest.approx(0.5)
    assert timing.unsure_ms == pytest.approx(0.5)


def test_one_slow_launch_is_an_accident():
    """The machine may have been busy, so only launches that are usually slow count."""
    slow = lasting(0.01)._replace(launch_ms=9.0)
    assert timing_of(gated(*[lasting(0.01)] * 4, slow)).samples_ms == pytest.approx([0.01] * 5)


@given(st.lists(in_time, min_size=1, max_size=9).filter(lambda timed: len(timed) % 2), st.data())
def test_a_longer_call_never_makes_a_shorter_time(timed, data):
    """Whatever of the referee's clock grows for one call."""
    number = data.draw(st.integers(0, len(timed) - 1))
    longer = CallTimes(*(part + data.draw(times_ms) for part in timed[number]))
    longer = longer._replace(
        total_ms=longer.total_ms + longer.done_ms - timed[number].done_ms
    )  # the end comes later too
    after = timing_of(gated(*timed[:number], longer, *timed[number + 1 :]))
    assert timing_of(gated(*timed)).median_ms <= after.median_ms


@given(st.floats(0.002, 100.0), st.floats(0.0, 1.0), st.floats(0.0, 0.005))
def test_no_done_word_makes_a_call_shorter_beyond_its_doubt(work_ms, done_after, more_ms):
    """The device is back when all work has ended; a done word before that hides nothing."""
    moved = EMPTY_CALL._replace(total_ms=EMPTY_CALL.total_ms + 0.004)
    early = EMPTY_CALL._replace(
        done_ms=EMPTY_CALL.done_ms + done_after * work_ms, total_ms=moved.total_ms + work_ms + more_ms
    )
    timing = timing_of(gated(*[early] * 9, empty=Calibration(EMPTY.calls, (moved,) * 9)))
    assert timing.median_ms + timing.unsure_ms >= work_ms - 1e-9
    assert timing.median_ms >= work_ms - MAX_LATE_MS - 1e-9


def test_what_the_device_needs_to_be_back_depends_on_the_data_that_moved():
    """The time is that until the done word, if the device is back as soon as after moving the same data."""
    moved = EMPTY_CALL._replace(total_ms=EMPTY_CALL.total_ms + 0.03 + 0.005, done_ms=EMPTY_CALL.done_ms + 0.03)
    empty = Calibration(EMPTY.calls, (moved,) * 9)
    for back_ms, unsure_ms in ((0.0, 0.0), (-0.004, 0.0), (0.001, 0.001)):
        timing = timing_of(gated(moved._replace(total_ms=moved.total_ms + back_ms), empty=empty))
        assert timing.median_ms == pytest.approx(0.03)
        assert timing.unsure_ms == pytest.approx(PROCESS_DOUBT_MS + unsure_ms)
    assert empty.switch_ms == EMPTY.switch_ms


@given(st.lists(in_time, min_size=1, max_size=9), st.floats(0.0, 100.0))
def test_a_machine_that_takes_longer_for_everything_changes_no_time(timed, more_ms):
    def slow(call: CallTimes) -> CallTimes:
        return call._replace(total_ms=call.total_ms + 2 * more_ms, done_ms=call.done_ms + more_ms)

    later, slowed = Calibration(tuple(map(slow, EMPTY.calls))), map(slow, timed)
    before, after = timing_of(gated(*timed)), timing_of(gated(*slowed, empty=later))
    assert after.samples_ms == pytest.approx(before.samples_ms, abs=1e-9)


def test_an_end_that_comes_before_the_device_can_have_switched_is_early():
    most_ms = MIN_SWITCH_SHARE * EMPTY_CALL.done_ms
    assert not EMPTY.is_early(EMPTY_CALL._replace(done_ms=most_ms))
    assert EMPTY.is_early(EMPTY_CALL._replace(done_ms=most_ms * 0.999))


def test_a_device_that_is_back_without_a_switch_shows_that_nothing_ran_before():
    back_ms = MIN_SWITCH_SHARE * (EMPTY_CALL.total_ms - EMPTY_CALL.done_ms)
    assert not EMPTY.is_early(EMPTY_CALL._replace(total_ms=EMPTY_CALL.done_ms + back_ms + 1e-9))
    assert EMPTY.is_early(EMPTY_CALL._replace(total_ms=EMPTY_CALL.done_ms + back_ms - 1e-9))


def test_one_early_end_is_an_accident_and_two_are_rejected_by_name():
    early = lasting(1.0)._replace(done_ms=0.0084)
    usual = [lasting(1.0)] * 30
    assert timing_of(gated(*usual, early)).median_ms == pytest.approx(1.0)
    with pytest.raises(Failure, match="2 calls signalled their end too early") as caught:
        timing_of(gated(*usual, early, early))
    assert (caught.value.outcome, caught.value.rule) == (Outcome.REJECTED, "done_too_early")


@pytest.mark.parametrize(
    ("field", "most_ms"),
    [
        ("probe_ms", EMPTY_CALL.probe_ms + SWITCH_MS / 4),
        ("flush_ms", EMPTY_CALL.flush_ms + SWITCH_MS / 4),
        ("writing_ms", MAX_WRITE_RATIO * EMPTY_CALL.writing_ms + SWITCH_MS / 4),
    ],
)
def test_what_holds_up_the_referee_before_the_gate_disturbs_a_call(field, most_ms):
    assert not EMPTY.is_disturbed(lasting(1.0)._replace(**{field: most_ms - 1e-9}))
    assert EMPTY.is_disturbed(lasting(1.0)._replace(**{field: most_ms + 1e-9}))


def test_a_kernel_that_runs_while_inputs_are_written_is_always_seen():
    """A resident kernel made them take 2,100 us, and a probe at least 290 us, on the H200."""
    assert EMPTY.is_disturbed(EMPTY_CALL._replace(writing_ms=2.1))
    assert EMPTY.is_disturbed(EMPTY_CALL._replace(probe_ms=0.29))


@pytest.mark.parametrize("count", [1, 30, 31, 200])
def test_more_disturbed_calls_than_happen_by_accident_are_rejected_by_name(count):
    most = int(max(MAX_DISTURBED, MAX_DISTURBED_SHARE * count))
    timed = [lasting(1.0)] * count
    assert timing_of(gated(*timed, disturbed=most)).median_ms == pytest.approx(1.0)
    with pytest.raises(Failure, match=f"In {most + 1} calls something ran") as caught:
        timing_of(gated(*timed, disturbed=most + 1))
    assert (caught.value.outcome, caught.value.rule) == (Outcome.REJECTED, "ran_before_gate")


def test_a_candidate_that_disturbs_every_call_is_rejected_without_any_sample():
    with pytest.raises(Failure) as caught:
        timing_of(gated(disturbed=MAX_DISTURBED + 1))
    assert caught.value.rule == "ran_before_gate"


# --- the doubt


@given(st.lists(in_time, min_size=1, max_size=9), calibrations, times_ms)
def test_the_doubt_is_that_of_the_calibration_the_drift_and_a_late_return(timed, empty, drift_ms):
    timed = [call._replace(launch_ms=0.0) for call in timed]
    unsure_ms = timing_of(without_early(gated(*timed, empty=empty, drift_ms=drift_ms))).unsure_ms
    certain_ms = math.hypot(PROCESS_DOUBT_MS, empty.error_ms, drift_ms)
    assert certain_ms - 1e-9 <= unsure_ms <= certain_ms + MAX_LATE_MS + 1e-9


@given(calibrations, st.lists(calls, max_size=9))
def test_the_drift_is_how_far_later_empty_calls_are_off(empty, later):
    expected_ms = abs(median_of(later, "done_ms") - median_of(empty.calls, "done_ms")) if later else 0.0
    assert empty.drift_ms(later) == pytest.approx(expected_ms)


def test_more_empty_calls_leave_less_doubt():
    noisy = [EMPTY_CALL._replace(done_ms=EMPTY_CALL.done_ms + 1e-3 * (number * 7 % 11)) for number in range(200)]
    few, many = (Calibration(tuple(noisy[:count])) for count in (9, 200))
    assert 0 < many.error_ms < few.error_ms < 0.011
    assert EMPTY.error_ms == Calibration((EMPTY_CALL,)).error_ms == 0.0


# --- awake


@given(calibrations, st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=9), st.integers(0, MAX_DISTURBED))
def test_awake_nothing_is_taken_off_and_an_empty_call_is_in_doubt(empty, totals, disturbed):
    """And no end is too early: a message comes when it comes."""
    timed = tuple(CallTimes(total_ms=ms, done_ms=0.0) for ms in totals)
    timing = timing_of(Measurement(False, empty, timed, disturbed))
    assert timing.samples_ms == tuple(totals)
    assert timing.unsure_ms == median_of(empty.calls, "done_ms")


def test_awake_too_nothing_may_run_before_the_inputs_are_complete():
    with pytest.raises(Failure) as caught:
        timing_of(Measurement(False, EMPTY, (CallTimes(1.0, 0.9),) * 9, MAX_DISTURBED + 1))
    assert caught.value.rule == "ran_before_gate"


# --- the device, and the report


def test_a_gpu_that_runs_two_processes_at_once_is_refused_with_what_to_do():
    """Under MPS there is no switch: an empty kernel and the copy take 19.5 us together."""
    shared = CallTimes(total_ms=0.0195, done_ms=0.0084, launch_ms=0.04, writing_ms=0.05, probe_ms=0.009)
    with pytest.raises(MachineryFault, match="nvidia-cuda-mps-control"):
        Calibration((shared,) * 9).require_switch()
    EMPTY.require_switch()


@pytest.mark.parametrize(("switch_ms", "is_refused"), [(MIN_SWITCH_MS * 1.01, False), (MIN_SWITCH_MS * 0.99, True)])
def test_the_shortest_switch_that_is_one(switch_ms, is_refused):
    call = EMPTY_CALL._replace(total_ms=EMPTY_CALL.done_ms + EMPTY_CALL.probe_ms + switch_ms)
    calibration = Calibration((call,) * 3)
    assert calibration.switch_ms == pytest.approx(switch_ms)
    if is_refused:
        with pytest.raises(MachineryFault):
            calibration.require_switch()
    else:
        calibration.require_switch()


def test_one_unusual_empty_call_changes_nothing():
    odd = CallTimes(9.0, 0.0, 9.0, 9.0, 9.0, 9.0)
    assert Calibration((*EMPTY.calls, odd)).median == EMPTY.median
    assert Calibration((*EMPTY.calls, odd)).switch_ms == pytest.approx(SWITCH_MS)


def test_a_report_says_what_was_calibrated():
    said = describe_times(gated(*[lasting(1.0)] * 3, disturbed=2))
    assert said.startswith("gated: 1.1460 ms from gate to done, less 0.1460 ms of an empty call; back +0.0 us later")
    assert "launching 0.0400 ms; a switch of processes 0.1374 ms; 2 calls repeated" in said
    awake = describe_times(Measurement(False, EMPTY, (CallTimes(1.5, 1.4),)))
    assert awake == "awake: 1.5000 ms from request to copy; 0.1460 ms of an empty call are in doubt"
