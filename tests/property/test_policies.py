"""Spec section 3: selection. Each test names the rule it proves."""

from __future__ import annotations

import logging
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark.core.errors import UsageError
from stark.core.settings import SearchSettings
from stark.core.tree import ROOT_ID, Attempt, Node, Role, Tree
from stark.search.epsilon_greedy import EpsilonGreedy
from stark.search.policies import POLICIES, open_policy
from stark_worker.protocol.errors import Outcome
from strategies import report, trees

seeds = st.integers(0, 2**32)
pending = st.lists(st.integers(0, 14), max_size=6)


def put_in_flight(tree: Tree, parents: list[int]) -> None:
    for number, parent_id in enumerate(parents, start=1000):
        if parent_id in tree and tree[parent_id].source is not None:
            tree.begin(number, parent_id)


def grow(*rows: tuple[int, int, float | None]) -> Tree:
    """A tree from (id, parent, runtime or None for failed); the root takes 10 ms."""
    tree = Tree()
    tree.add(Node(ROOT_ID, None, Attempt(Role.REFERENCE, "root", report(Outcome.OK, 10.0))))
    for number, parent_id, runtime in rows:
        found = report(Outcome.OK, runtime) if runtime else report(Outcome.WRONG_RESULT)
        tree.add(Node(number, parent_id, Attempt(Role.CODE, f"source {number}", found)))
    return tree


def chosen(policy: str, tree: Tree, draws: int = 300, **settings: float) -> Counter[int]:
    made = open_policy(policy, SearchSettings.model_validate(settings))
    nodes = [made.select(tree, Random(seed)) for seed in range(draws)]
    return Counter(node.id for node in nodes if node is not None)


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(tree=trees(), in_flight=pending, seed=seeds)
def test_every_policy_returns_only_finished_nodes_with_source(name, tree, in_flight, seed):
    put_in_flight(tree, in_flight)
    node = open_policy(name, SearchSettings()).select(tree, Random(seed))
    if node is None:
        assert tree.in_flight
    else:
        assert node.id in tree
        assert node.source is not None
        assert node == tree[node.id]


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(tree=trees(), seed=seeds)
def test_every_policy_chooses_the_same_for_the_same_tree_and_seed(name, tree, seed):
    select = open_policy(name, SearchSettings()).select
    assert select(tree, Random(seed)) == select(tree, Random(seed))


@given(tree=trees(max_nodes=20), in_flight=pending, seed=seeds, n_root=st.integers(1, 6), n_child=st.integers(0, 4))
def test_epsilon_greedy_never_returns_a_throttled_root_or_a_dead_branch(tree, in_flight, seed, n_root, n_child):
    put_in_flight(tree, in_flight)
    policy = EpsilonGreedy(SearchSettings(n_root=n_root, n_child=n_child))
    node = policy.select(tree, Random(seed))
    if node is None:
        return
    children = tree.children(node.id)
    dead = len(children) > n_child and all(child.failed for child in children)
    throttled = node.id == ROOT_ID and len(children) + tree.pending_children(ROOT_ID) >= n_root
    if dead or throttled:
        # the one stated exception: the lift, when nothing is eligible and nothing is in flight
        assert node.id == ROOT_ID
        assert not tree.in_flight
        assert not any(policy.eligible(tree, each) for each in tree.expandable())


@given(tree=trees(max_nodes=20), seed=seeds)
def test_exploitation_takes_the_lowest_score_among_the_eligible(tree, seed):
    policy = EpsilonGreedy(SearchSettings(epsilon=0))
    node = policy.select(tree, Random(seed))
    eligible = [each for each in tree.expandable() if policy.eligible(tree, each)]
    if eligible:
        scores = [each.runtime_ms or float("inf") for each in eligible]
        assert node in eligible
        assert (node.runtime_ms or float("inf")) == min(scores)


@given(tree=trees(max_nodes=20), seed=seeds)
def test_exploration_takes_an_eligible_leaf_where_there_is_one(tree, seed):
    policy = EpsilonGreedy(SearchSettings(epsilon=1))
    node = policy.select(tree, Random(seed))
    leaves = [each for each in tree.expandable() if not tree.children(each.id) and policy.eligible(tree, each)]
    if leaves:
        assert node in leaves


def test_root_throttling_counts_children_in_flight():
    tree = grow((1, 0, 20.0))
    for number in range(2, 6):
        tree.begin(number, ROOT_ID)
    assert ROOT_ID not in chosen("epsilon-greedy", tree)


def test_a_throttled_root_with_nothing_else_eligible_waits_while_attempts_are_in_flight():
    tree = grow()
    for number in range(1, 6):
        tree.begin(number, ROOT_ID)
    assert EpsilonGreedy(SearchSettings()).select(tree, Random(0)) is None


def test_the_throttle_is_lifted_and_said_so_when_nothing_is_eligible_and_nothing_in_flight(caplog):
    tree = grow()
    for number in range(1, 6):
        tree.add(Node(number, ROOT_ID, Attempt(Role.PLAN, None, report(Outcome.UNUSABLE_REPLY))))
    with caplog.at_level(logging.WARNING):
        assert EpsilonGreedy(SearchSettings()).select(tree, Random(0)) == tree.root
    assert "despite its throttle" in caplog.text


def test_dead_branch_pruning_begins_with_the_fourth_failed_child():
    three = grow((1, 0, 5.0), *((number, 1, None) for number in (2, 3, 4)))
    four = grow((1, 0, 5.0), *((number, 1, None) for number in (2, 3, 4, 5)))
    assert 1 in chosen("epsilon-greedy", three)
    assert 1 not in chosen("epsilon-greedy", four)


def test_one_good_child_keeps_a_branch_alive():
    tree = grow((1, 0, 5.0), (2, 1, 6.0), *((number, 1, None) for number in (3, 4, 5, 6)))
    assert 1 in chosen("epsilon-greedy", tree)


def test_exploration_reaches_failed_and_correct_leaves_in_the_share_of_epsilon():
    tree = grow((1, 0, 5.0), (2, 0, None), (3, 0, 7.0))
    counts = chosen("epsilon-greedy", tree, draws=3000, epsilon=0.3)
    assert 0.7 * 3000 < counts[1] < 0.9 * 3000  # 0.7 exploits plus a third of 0.3
    assert 200 < counts[2] < 400
    assert 200 < counts[3] < 400


def test_ties_are_broken_at_random():
    assert set(chosen("epsilon-greedy", grow((1, 0, 5.0), (2, 0, 5.0)), epsilon=0)) == {1, 2}


def test_infinite_ties_are_broken_at_random_when_only_failed_nodes_are_eligible():
    tree = grow(*((number, 0, None) for number in range(1, 6)))
    assert set(chosen("epsilon-greedy", tree, epsilon=0)) == {1, 2, 3, 4, 5}


def test_greedy_takes_the_fastest_even_the_root():
    assert set(chosen("greedy", grow((1, 0, 20.0)))) == {ROOT_ID}
    assert set(chosen("greedy", grow((1, 0, 2.0)))) == {1}


def test_always_root_and_last_attempt_turn_the_loop_into_the_baselines():
    tree = grow((1, 0, 2.0), (2, 1, None))
    assert set(chosen("always-root", tree)) == {ROOT_ID}
    assert set(chosen("last-attempt", tree)) == {2}


def test_last_attempt_passes_over_a_reply_without_source():
    tree = grow((1, 0, 2.0))
    tree.add(Node(2, 1, Attempt(Role.SOLO, None, report(Outcome.UNUSABLE_REPLY))))
    assert set(chosen("last-attempt", tree)) == {1}


def test_root_or_repair_repairs_a_failed_last_attempt_at_most_twice():
    tree = grow((1, 0, 2.0), (2, 0, None))
    assert set(chosen("root-or-repair", tree)) == {2}
    for number in (3, 4):
        tree.add(Node(number, number - 1, Attempt(Role.DEBUG, f"repair {number}", report(Outcome.CRASH))))
        assert set(chosen("root-or-repair", tree)) == {3 if number == 3 else ROOT_ID}


def test_root_or_repair_goes_back_to_the_root_after_a_success():
    assert set(chosen("root-or-repair", grow((1, 0, None), (2, 1, 3.0)))) == {ROOT_ID}


def test_mcts_prefers_the_better_subtree_but_visits_the_other():
    rows = [(1, 0, 1.0), (2, 0, 50.0), (3, 0, 60.0), (4, 0, None)]
    tree = grow(*rows, (5, 1, 0.9), (6, 1, 0.8), (7, 2, None))
    first = Counter[int]()
    for number in range(8, 60):
        node = open_policy("mcts", SearchSettings()).select(tree, Random(number))
        assert node is not None
        branch = (
            node.id
            if node.parent_id == ROOT_ID
            else next(each.id for each in (node, *tree.ancestors(node.id)) if each.parent_id == ROOT_ID)
        )
        first[branch] += 1
        tree.add(
            Node(
                number,
                node.id,
                Attempt(Role.CODE, f"source {number}", report(Outcome.OK, 1.0 if branch == 1 else 50.0)),
            )
        )
    assert first[1] > first[2] + first[3]
    assert first[2] > 0


def test_evolutionary_never_builds_on_a_failed_candidate_and_prefers_the_fit():
    tree = grow(*((number, 0, float(number)) for number in range(1, 12)), (12, 0, None))
    counts = chosen("evolutionary", tree)
    assert 12 not in counts
    assert counts[1] > counts[5] > 0


def test_an_unknown_policy_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="epsilon-greedy"):
        open_policy("epsilon_greedy", SearchSettings())


def test_a_policy_of_your_own_is_named_by_its_path():
    assert isinstance(open_policy("stark.search.simple:Greedy", SearchSettings()), POLICIES["greedy"])
