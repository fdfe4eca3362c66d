"""A candidate and its opponent take turns: timed in the same way, on the same inputs, in pairs of samples."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stark_worker.protocol.errors import Failure, MachineryFault, Outcome
from stark_worker.protocol.report import Timing
from stark_worker.referee.sampling import (
    DEVICE_SAMPLES,
    HOST_SAMPLES,
    MAX_SAMPLING_S,
    MIN_SAMPLES,
    RECHECK_EVERY,
    SAMPLING_DEVICE_S,
    SAMPLING_S,
    _has_enough,
    correct_opponent,
    measure,
    prepare,
)
from stark_worker.timing.measurement import MAX_DISTURBED, CallTimes

FAILURE = Failure(Outcome.WRONG_RESULT, "It is wrong.")


class FakeTrial:
    """A trial whose calls end as planned: with times, with None for a disturbed call, or with an error."""

    def __init__(self, *, on_host: bool = False, why_awake: str | None = None, planned=(), at_first=None) -> None:
        self.on_host, self.why_awake, self.is_gated, self.is_kernelbench = on_host, why_awake, not on_host, False
        self.is_brief, self.best_ms = False, None
        self.times: list[CallTimes] = []
        self.rechecked, self.drift_ms = 0, 0.0
        self.disturbed, self.busy_warning = 0, None
        self.candidate = SimpleNamespace(is_visible=False)
        self.cases: list[object] = []
        self._planned, self._at_first, self.restarted = iter(planned), at_first, 0

    def prepare(self) -> None:
        if self._at_first:
            raise self._at_first

    def restart_clock(self) -> None:
        self.restarted += 1

    def restart(self) -> None:
        self.times = []

    def time_call(self, case: object) -> CallTimes | None:
        self.cases.append(case)
        now = next(self._planned, CallTimes(1.0, 0.5))
        if isinstance(now, Exception):
            raise now
        return now

    def certain_ms(self) -> list[float]:
        return [call.done_ms for call in self.times]

    def recheck(self, _: object) -> float:
        self.rechecked += 1
        return 1e-3 * self.rechecked

    def timing(self) -> Timing:
        return Timing(tuple(call.total_ms for call in self.times), unsure_ms=0.25)


class FakeReference:
    def timed_case(self) -> object:
        return object()

    timed_inputs = timed_case


@pytest.mark.parametrize(
    ("reasons", "is_gated", "why"),
    [
        ((None, None), True, None),
        (("mine", None), False, "mine"),
        ((None, "the opponent's"), False, "the opponent's"),
        (("mine", "the opponent's"), False, "mine"),
    ],
)
def test_both_sides_are_gated_or_both_are_awake_for_the_same_reason(reasons, is_gated, why):
    trial, opponent = (FakeTrial(why_awake=reason) for reason in reasons)
    prepare(trial, [opponent])
    assert [(each.is_gated, each.why_awake, each.restarted) for each in (trial, opponent)] == [(is_gated, why, 1)] * 2


def test_the_host_has_no_gate():
    trial = FakeTrial(on_host=True)
    prepare(trial, [])
    assert not trial.is_gated


def test_an_opponent_that_fails_blames_no_candidate():
    with pytest.raises(MachineryFault, match="compared with failed: It is wrong"):
        prepare(FakeTrial(), [FakeTrial(at_first=FAILURE)])
    with pytest.raises(Failure, match="It is wrong"):
        prepare(FakeTrial(at_first=FAILURE), [FakeTrial()])
    with pytest.raises(MachineryFault, match="compared with failed: It is wrong"):
        measure([FakeTrial(), FakeTrial(planned=[FAILURE])], FakeReference())
    with pytest.raises(Failure, match="It is wrong"):
        measure([FakeTrial(planned=[FAILURE]), FakeTrial()], FakeReference())


def test_samples_come_in_pairs_on_the_same_inputs_never_used_before():
    trial, opponent = FakeTrial(), FakeTrial()
    timing, other = measure([trial, opponent], FakeReference())
    assert len(timing.samples_ms) == len(other.samples_ms) == DEVICE_SAMPLES[1]
    assert trial.cases == opponent.cases
    assert len(set(trial.cases)) == len(trial.cases)


def test_an_opponent_is_not_in_doubt():
    """It gains nothing by hiding work."""
    timings = measure([FakeTrial(), FakeTrial()], FakeReference())
    assert [each.unsure_ms for each in timings] == [0.25, 0.0]


@pytest.mark.parametrize("disturbed", ["candidate", "opponent"])
def test_a_disturbed_call_of_either_side_drops_the_pair_and_counts_against_the_candidate(disturbed):
    held_up = [CallTimes(7.0, 7.0), None, CallTimes(8.0, 8.0), None]
    trial = FakeTrial(planned=held_up if disturbed == "candidate" else ())
    opponent = FakeTrial(planned=held_up if disturbed == "opponent" else ())
    measure([trial, opponent], FakeReference())
    assert (trial.disturbed, opponent.disturbed) == (2, 0)
    assert len(trial.times) == len(opponent.times) == DEVICE_SAMPLES[1]
    slow = trial if disturbed == "candidate" else opponent
    assert [call.total_ms for call in slow.times[:3]] == [7.0, 8.0, 1.0]


def test_a_candidate_that_disturbs_every_call_ends_the_sampling():
    trial = FakeTrial(planned=[None] * 100)
    with pytest.raises(ValueError, match="samples"):  # of the fake; a real trial is rejected by name
        measure([trial], FakeReference())
    assert trial.disturbed == MAX_DISTURBED + 1


def test_empty_calls_are_repeated_in_turns_in_the_opponents_process():
    trial, opponent = FakeTrial(), FakeTrial()
    measure([trial, opponent], FakeReference())
    assert opponent.rechecked == DEVICE_SAMPLES[1] // RECHECK_EVERY
    assert (trial.rechecked, trial.drift_ms) == (0, 1e-3 * opponent.rechecked)
    alone = FakeTrial()
    measure([alone], FakeReference())
    assert alone.rechecked == 0


def test_nothing_is_rechecked_awake():
    sides = [FakeTrial(on_host=True), FakeTrial(on_host=True)]
    prepare(sides[0], sides[1:])
    measure(sides, FakeReference())
    assert not any(side.rechecked for side in sides)


@pytest.mark.parametrize(
    ("on_host", "count", "spent_s", "enough"),
    [
        (True, HOST_SAMPLES[0], SAMPLING_S + 0.1, True),
        (True, HOST_SAMPLES[0], SAMPLING_S - 0.1, False),
        (True, HOST_SAMPLES[0] - 1, SAMPLING_S + 0.1, False),
        (True, HOST_SAMPLES[1], 0.0, True),
        (True, MIN_SAMPLES, MAX_SAMPLING_S + 0.1, True),
        (True, MIN_SAMPLES - 1, 1e6, False),
        (False, DEVICE_SAMPLES[0], SAMPLING_DEVICE_S + 0.1, True),
        (False, DEVICE_SAMPLES[1] - 1, SAMPLING_DEVICE_S - 0.1, False),
        (False, DEVICE_SAMPLES[1], 0.0, True),
    ],
)
def test_samples_suffice_by_their_number_and_by_the_time_they_took(on_host, count, spent_s, enough):
    trial = FakeTrial(on_host=on_host)
    trial.times = [CallTimes(1.0, 0.5)] * count
    assert _has_enough(trial, 1, spent_s) is enough
    assert _has_enough(trial, 2, 2 * spent_s) is enough


def test_a_slow_candidate_needs_few_samples_and_a_close_one_all():
    slow, close = FakeTrial(), FakeTrial()
    slow.best_ms, close.best_ms = 0.3, 0.4  # both take 0.5 ms
    assert len(measure([slow], FakeReference())[0].samples_ms) == MIN_SAMPLES
    assert len(measure([close], FakeReference())[0].samples_ms) == DEVICE_SAMPLES[1]


def test_an_opponent_is_never_compared_with_fewer_samples():
    trial = FakeTrial()
    trial.best_ms = 1e-3
    assert len(measure([trial, FakeTrial()], FakeReference())[0].samples_ms) == DEVICE_SAMPLES[1]


def test_a_brief_trial_ends_with_the_fewest_samples():
    trial = FakeTrial(on_host=True)
    trial.is_brief = True
    assert len(measure([trial], FakeReference())[0].samples_ms) == MIN_SAMPLES


def test_kernelbench_gets_as_many_samples_as_it_takes_itself():
    trial = FakeTrial()
    trial.is_kernelbench, trial.times = True, [CallTimes(1.0, 0.5)] * 99
    assert not _has_enough(trial, 1, SAMPLING_DEVICE_S + 1.0)
    trial.times.append(CallTimes(1.0, 0.5))
    assert _has_enough(trial, 1, 0.0)


@pytest.mark.parametrize(("in_turns_ms", "counts_ms"), [(1.0, 1.0), (1.2, 1.2), (3.0, 1.0), (0.5, 0.5)])
def test_an_opponent_that_was_slowed_in_turns_counts_with_its_times_alone(in_turns_ms, counts_ms):
    """It takes 1 ms alone, with a doubt of 0.25 ms."""
    timing, text = correct_opponent(Timing((in_turns_ms,) * 9), FakeTrial(), FakeReference())
    assert timing.samples_ms == pytest.approx((counts_ms,) * 9)
    assert ("its times alone count" in text) is (counts_ms != in_turns_ms)
