"""Limits of providers: never more in a minute than allowed, no waiting without need, equal parts for runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stark.models.rates import WINDOW_S, RateWindow

CALLS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 400), st.floats(0, 1), st.floats(0, 30)), min_size=1, max_size=60
)


def run_all(window: RateWindow, calls, used: float | None = None):
    """Add each call after its pause, and let the clock run until none waits; return (time, grant) of each."""
    now, number, begun = 0.0, 0, []

    def admit():
        for _, grant in window.admit(now):
            begun.append(grant)
            window.settle(grant, None if used is None else round(grant.worst * used))

    for run, worst, _, pause in calls:
        now, number = now + pause, number + 1
        window.add(run, number, worst)
        admit()
    while (change := window.next_change()) is not None:
        now = max(now, change)
        admit()
    return begun


def most_in_a_minute(begun, size) -> int:
    starts = [grant.at for grant in begun]
    return max(sum(size(grant) for grant in begun if start <= grant.at < start + WINDOW_S) for start in starts)


@given(CALLS, st.integers(1, 10))
def test_requests_never_exceed_the_limit_in_any_minute(calls, limit):
    begun = run_all(RateWindow(requests=limit), calls)
    assert len(begun) == len(calls)
    assert most_in_a_minute(begun, lambda grant: 1) <= limit


@given(CALLS, st.integers(400, 2000))
def test_tokens_never_exceed_the_limit_if_no_call_takes_more_than_its_worst_case(calls, limit):
    begun = run_all(RateWindow(tokens=limit), calls, used=1.0)
    assert len(begun) == len(calls)
    assert most_in_a_minute(begun, lambda grant: grant.tokens) <= limit


@given(st.integers(2, 6), st.integers(1, 5), st.integers(1, 4))
def test_runs_that_wait_get_equal_parts_whatever_the_length_of_their_queues(runs, parts, minutes):
    window = RateWindow(requests=runs * parts)
    for run in range(runs):
        for call in range(parts * minutes * (1 if run else 10)):  # the first asks for far more
            window.add(str(run), run * 1000 + call, 1)
    for minute in range(minutes):
        admitted = [grant.run for _, grant in window.admit(minute * WINDOW_S)]
        assert {admitted.count(str(run)) for run in range(runs)} == {parts}


@given(CALLS)
def test_without_contention_nothing_waits(calls):
    begun = run_all(RateWindow(requests=1000, tokens=10**6), calls)
    moments = [sum(pause for *_, pause in calls[: number + 1]) for number in range(len(calls))]
    assert [grant.at for grant in begun] == moments


def test_a_call_larger_than_a_minute_is_let_through_alone():
    window = RateWindow(tokens=100)
    window.add("a", 1, 500)
    window.add("a", 2, 500)
    assert [number for number, _ in window.admit(0.0)] == [1]
    assert [number for number, _ in window.admit(59.0)] == []
    assert [number for number, _ in window.admit(60.0)] == [2]


def test_the_estimate_follows_what_calls_take():
    window = RateWindow(tokens=1000)
    for number in range(60):
        window.add("a", number, 1000)
    admitted = []
    for minute in range(10):
        begun = [grant for _, grant in window.admit(minute * WINDOW_S)]
        for grant in begun:
            window.settle(grant, 100)
        admitted.append(len(begun))
    assert admitted[0] == 1
    assert admitted[-1] >= 5


def test_a_withdrawn_call_never_begins():
    window = RateWindow(requests=1)
    for number in (1, 2, 3):
        window.add("a", number, 1)
    assert [number for number, _ in window.admit(0.0)] == [1]
    window.withdraw("a", 2)
    assert [number for number, _ in window.admit(60.0)] == [3]
    assert window.next_change() is None
