"""Spec section 2: tree memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark.analysis.metrics import compile_rate, compute_averages, compute_metrics, correct_rate, fast_p, success_rate
from stark.core.tree import ROOT_ID, Attempt, Node, Role, Tree
from stark_worker.protocol.errors import Outcome
from strategies import report, trees


def snapshot(tree: Tree) -> object:
    nodes = list(tree)
    return (
        [node.id for node in nodes],
        {node.id: [child.id for child in tree.children(node.id)] for node in nodes},
        [node.id for node in tree.ranked()],
        tree.best and tree.best.id,
    )


@given(tree=trees(), cut=st.integers(1, 15))
def test_a_view_is_the_tree_as_it_was_and_stays_so(tree, cut):
    nodes = list(tree)[:cut]
    earlier = Tree()
    for node in nodes:
        earlier.add(node)
    assert snapshot(tree.at(len(nodes))) == snapshot(earlier)


@given(tree=trees())
def test_relations_agree_with_the_parents_that_nodes_name(tree):
    for node in tree:
        assert {child.id for child in tree.children(node.id)} == {each.id for each in tree if each.parent_id == node.id}
        assert all(sibling.parent_id == node.parent_id and sibling.id != node.id for sibling in tree.siblings(node.id))
        assert tree.is_within(node.id, ROOT_ID)
        assert tree.all_children_failed(node.id) == all(child.failed for child in tree.children(node.id))
        assert tree.child_count(node.id) == len(tree.children(node.id))


@given(tree=trees(), count=st.integers(0, 4), outside=st.integers(0, 14))
def test_leaders_are_the_fastest_correct_distinct_and_outside_the_subtree(tree, count, outside):
    if outside not in tree:
        return
    leaders = tree.leaders(count, outside)
    allowed = [
        node
        for node in tree.ranked()
        if node.id != ROOT_ID and not tree.is_within(node.id, outside) and node.source != tree[outside].source
    ]
    assert len(leaders) == min(count, len({node.source for node in allowed}))
    assert len({node.source for node in leaders}) == len(leaders)
    assert all(leader in allowed for leader in leaders)
    slower = [node for node in allowed if node.source not in {leader.source for leader in leaders}]
    assert all(leader.runtime_ms <= node.runtime_ms for leader in leaders for node in slower)


@given(tree=trees())
def test_best_is_never_the_root(tree):
    correct = [node.runtime_ms for node in tree if node.id != ROOT_ID and not node.failed]
    assert (tree.best.runtime_ms if tree.best else None) == min(correct, default=None)
    assert tree.best is None or tree.best.id != ROOT_ID


@given(tree=trees())
def test_metrics_never_count_the_root(tree):
    found = compute_metrics([node.judgement for node in tree])
    assert found.attempts == len(tree) - 1
    assert found.correct == sum(not node.failed for node in tree if node.id != ROOT_ID)
    assert found.success == (found.correct > 0)
    assert found.correct <= found.compiled <= found.attempts


@given(forest=st.lists(trees(), min_size=1, max_size=5), p=st.floats(0.1, 4))
def test_rates_are_shares_of_tasks(forest, p):
    runs = [compute_metrics([node.judgement for node in tree]) for tree in forest]
    speedups = [run.root_ms / run.best_ms if run.best_ms else None for run in runs]
    assert fast_p(speedups, p) <= success_rate(runs) <= 1
    attempts, compiled, correct = (
        sum(getattr(run, name) for run in runs) for name in ("attempts", "compiled", "correct")
    )
    assert compile_rate(runs) == (compiled / attempts if attempts else 0)
    assert correct_rate(runs) == (correct / attempts if attempts else 0)
    assert correct_rate(runs, of_compiled=True) == (correct / compiled if compiled else 0)
    found = compute_averages(speedups)
    assert found is not None
    assert (found.mean is None) == (success_rate(runs) == 0)
    if found.mean is not None:
        assert found.geometric_mean <= found.mean * (1 + 1e-9)
    assert found.failed == sum(not run.success for run in runs)


SPEEDUPS = st.lists(st.none() | st.floats(0.01, 100), min_size=1, max_size=8)


@given(speedups=SPEEDUPS)
def test_no_kernel_and_a_slower_one_leave_a_user_with_the_same(speedups):
    faster = [speedup if speedup and speedup > 1 else None for speedup in speedups]
    assert compute_averages(speedups).clamped == compute_averages(faster).clamped >= 1 - 1e-9


def test_a_node_cannot_be_added_twice_or_without_its_parent():
    tree = Tree()
    root = Node(ROOT_ID, None, Attempt(Role.REFERENCE, "root", report(Outcome.OK)))
    tree.add(root)
    with pytest.raises(ValueError, match="already"):
        tree.add(root)
    with pytest.raises(ValueError, match="unknown parent"):
        tree.add(Node(2, 1, Attempt(Role.CODE, "source", report(Outcome.OK))))


def test_the_reference_is_no_twin_of_a_candidate():
    tree = Tree()
    tree.add(Node(ROOT_ID, None, Attempt(Role.REFERENCE, "same", report(Outcome.OK))))
    assert tree.twin("same") is None
    tree.add(Node(1, ROOT_ID, Attempt(Role.CODE, "same", report(Outcome.COMPILE_ERROR))))
    assert tree.twin("same") == tree[1]
    assert tree.at(1).twin("same") is None
