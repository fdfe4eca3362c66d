"""Busy threads get cores of their own as far as there are enough, and never one that they may not use."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from stark_worker.processes.placement import assign_cores
from stark_worker.processes.process_tree import ThreadFacts

CORES = st.integers(0, 7)
THREADS = st.lists(st.builds(ThreadFacts, st.integers(1), CORES, st.frozensets(CORES, min_size=1), st.integers(0)))


@given(THREADS)
def test_each_thread_gets_a_core_that_it_may_use(threads):
    placed = assign_cores(threads)
    assert [each.thread for each in placed] == threads
    assert all(each.core in each.thread.allowed for each in placed)


@given(st.lists(CORES, max_size=30), st.frozensets(CORES, min_size=1))
def test_threads_with_the_same_choice_are_dealt_evenly(last, allowed):
    placed = assign_cores(ThreadFacts(number, core, allowed, 0) for number, core in enumerate(last))
    load = Counter(dict.fromkeys(allowed, 0)) + Counter(each.core for each in placed)
    dealt = [load[core] for core in allowed]
    assert max(dealt) - min(dealt) <= 1


@given(st.permutations(range(8)))
def test_threads_that_are_apart_stay_where_they_are(last):
    placed = assign_cores(ThreadFacts(number, core, frozenset(range(8)), 0) for number, core in enumerate(last))
    assert [each.core for each in placed] == last
