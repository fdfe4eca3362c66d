"""Of huge calls only some are compared: no candidate can count on one that is not."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.referee import selection as module
from stark_worker.referee.selection import FAST_SHARE, GROUP, Selection

draws = st.floats(0.0, 1.0, exclude_max=True)
times_ms = st.floats(0.01, 100.0)


def choose(drawn: list[float], totals: list[float]) -> list[bool]:
    """The choices about calls that took so long, if chance draws these numbers."""
    selection, chosen = Selection(), []
    for number, total_ms in zip(drawn, totals, strict=True):
        chance = SimpleNamespace(random=lambda number=number: number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module.random, "SystemRandom", lambda chance=chance: chance)
            chosen.append(selection.is_chosen(total_ms))
    return chosen


@given(st.lists(st.tuples(draws, times_ms), min_size=1, max_size=40))
def test_one_call_of_each_group_is_compared(calls):
    drawn, totals = map(list, zip(*calls, strict=True))
    chosen = choose(drawn, totals)
    whole = len(chosen) // GROUP * GROUP
    assert all(any(chosen[begin : begin + GROUP]) for begin in range(0, whole, GROUP))


def test_chance_alone_would_leave_calls_out_and_the_last_of_a_group_makes_up_for_it():
    assert choose([0.99] * 12, [1.0] * 12) == [False, False, False, False, True] * 2 + [False, False]


@given(st.lists(st.tuples(draws, times_ms), min_size=1, max_size=40))
def test_earlier_choices_make_a_later_one_no_less_likely(calls):
    """A candidate may notice that it was compared, so each call is chosen by the same chance at least."""
    drawn, totals = map(list, zip(*calls, strict=True))
    chosen = choose(drawn, totals)
    assert all(is_chosen for is_chosen, number in zip(chosen, drawn, strict=True) if number < 1 / GROUP)


@given(st.integers(1, 30), st.floats(0.01, 100.0), st.floats(0.001, FAST_SHARE - 0.001))
def test_a_call_that_is_faster_than_usual_is_always_compared(before, usual_ms, share):
    totals = [usual_ms] * (before + GROUP) + [usual_ms * share]
    assert choose([0.99] * len(totals), totals)[-1]


def test_real_chance_compares_about_every_third_call():
    """One in five by chance, and the last of those groups that chance left out."""
    selection = Selection()
    chosen = sum(itertools.islice((selection.is_chosen(1.0) for _ in itertools.count()), 5_000))
    assert 0.22 < chosen / 5_000 < 0.32
