"""The contract of every Policy. Run it on a policy of your own:

class TestMine(PolicyConformance):
    @pytest.fixture
    def policy(self):
        return Mine(SearchSettings())
"""

from __future__ import annotations

from random import Random

import pytest

from stark.core.interfaces import Policy
from stark.core.tree import ROOT_ID, Attempt, Node, Role, Tree
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing


def grown(seed: int, nodes: int = 40) -> Tree:
    """A tree as runs leave them: some nodes fail, some have no source, some attempts are in flight."""
    rng, tree = Random(seed), Tree()
    tree.add(Node(ROOT_ID, None, Attempt(Role.REFERENCE, "root", EvalReport(Outcome.OK, Timing((10.0,))))))
    for number in range(1, nodes):
        parent = rng.choice(tree.expandable())
        kind = rng.choice([Outcome.OK, Outcome.OK, Outcome.WRONG_RESULT, Outcome.UNUSABLE_REPLY])
        timing = Timing((rng.uniform(1, 20),)) if kind is Outcome.OK else None
        source = None if kind is Outcome.UNUSABLE_REPLY else f"source {number}"
        tree.add(Node(number, parent.id, Attempt(Role.CODE, source, EvalReport(kind, timing))))
    for number in range(nodes, nodes + rng.randrange(4)):
        tree.begin(number, rng.choice(tree.expandable()).id)
    return tree


class PolicyConformance:
    @pytest.mark.parametrize("seed", range(25))
    def test_it_chooses_a_finished_node_with_source_or_waits_for_one_in_flight(self, policy: Policy, seed: int) -> None:
        tree = grown(seed)
        node = policy.select(tree, Random(seed))
        if node is None:
            assert tree.in_flight
        else:
            assert tree[node.id] == node
            assert node.source is not None

    @pytest.mark.parametrize("seed", range(5))
    def test_the_same_tree_and_generator_give_the_same_choice(self, policy: Policy, seed: int) -> None:
        assert policy.select(grown(seed), Random(seed)) == policy.select(grown(seed), Random(seed))

    def test_a_tree_of_the_root_alone_grows_from_the_root(self, policy: Policy) -> None:
        assert policy.select(grown(0, nodes=1).at(1), Random(0)) in (None, grown(0, nodes=1).root)

    def test_it_leaves_the_tree_alone(self, policy: Policy) -> None:
        tree = grown(3)
        before = [*tree], tree.in_flight
        policy.select(tree, Random(3))
        assert ([*tree], tree.in_flight) == before
