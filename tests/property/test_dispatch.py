"""The choice of lanes: nothing lost, nothing twice, no lane idle without need, nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stark.evaluation.cluster.dispatch import MAX_SKIPS, Dispatcher, Job

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from("tuvw"), st.frozensets(st.sampled_from("ABC"), max_size=3)),
        st.tuples(st.just("finish"), st.integers(0, 20), st.none()),
        st.tuples(st.just("lose"), st.sampled_from("ABC"), st.none()),
        st.tuples(st.just("join"), st.sampled_from("ABC"), st.integers(1, 3)),
    ),
    max_size=60,
)


@given(STEPS)
def test_each_request_runs_once_at_a_time_and_no_lane_is_idle_while_a_request_may_run_there(steps):
    dispatcher, running, waiting, capacity = Dispatcher(), {}, {}, {}
    for count, (what, one, other) in enumerate(steps):
        if what == "submit":
            waiting[count] = Job(count, one, other)
            dispatcher.submit(waiting[count])
        elif what == "finish" and running:
            number = sorted(running)[one % len(running)]
            running.pop(number)
            dispatcher.finish(number)
        elif what == "lose":
            lost = dispatcher.remove_lane(one)
            assert lost == {number for number, lane in running.items() if lane == one}
            running = {number: lane for number, lane in running.items() if lane != one}
            capacity.pop(one, None)
        elif what == "join" and one not in capacity:
            capacity[one] = other
            dispatcher.add_lane(one, other)
        for number, lane in dispatcher.assign():
            job = waiting.pop(number)
            assert number not in running
            assert lane not in job.avoid or capacity.keys() <= job.avoid
            running[number] = lane
        for lane, room in capacity.items():
            used = list(running.values()).count(lane)
            assert used <= room
            may = [job for job in waiting.values() if lane not in job.avoid or capacity.keys() <= job.avoid]
            assert used == room or not may


@given(st.lists(st.sampled_from("tuvwxyz"), min_size=1, max_size=80))
def test_no_request_is_overtaken_more_often_than_allowed(tasks):
    dispatcher = Dispatcher()
    dispatcher.add_lane("A", 1)
    for number, task in enumerate(tasks):
        dispatcher.submit(Job(number, task))
    order = []
    while found := list(dispatcher.assign()):
        order += [number for number, _ in found]
        dispatcher.finish(found[0][0])
    assert sorted(order) == list(range(len(tasks)))
    for place, number in enumerate(order):
        overtakers = sum(other > number for other in order[:place])
        assert overtakers <= MAX_SKIPS * (number + 1)
    assert order[0] == 0


def test_a_lane_goes_on_with_the_task_whose_referee_it_keeps():
    dispatcher = Dispatcher()
    dispatcher.add_lane("A", 1)
    dispatcher.add_lane("B", 1)
    for number, task in enumerate("tu"):
        dispatcher.submit(Job(number, task))
    first = dict(dispatcher.assign())
    assert len(set(first.values())) == 2
    for number, task in enumerate("utut", start=2):
        dispatcher.submit(Job(number, task))
    dispatcher.finish(0)
    assert list(dispatcher.assign()) == [(3, first[0])]  # task t, although a request of u came first
    dispatcher.finish(1)
    assert list(dispatcher.assign()) == [(2, first[1])]
