"""The paper's policy: epsilon-greedy, adapted to a root that is hard to beat and children that often fail."""

from __future__ import annotations

import logging
from random import Random

from stark.core.settings import SearchSettings
from stark.core.tree import ROOT_ID, Node, Tree

log = logging.getLogger(__name__)


class EpsilonGreedy:
    """Mostly the best eligible node, sometimes an eligible leaf."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings

    def select(self, tree: Tree, rng: Random) -> Node | None:
        if rng.random() < self._settings.epsilon:
            # a leaf has no children that could have failed, so the root alone may be ineligible
            leaves = [leaf for leaf in tree.leaves() if leaf.id != ROOT_ID or self.eligible(tree, leaf)]
            if leaves:
                return rng.choice(leaves)
        best = self._best(tree)
        if best:
            return rng.choice(best)
        if tree.in_flight:
            return None
        log.warning("No node is eligible any more: the throttle on the root is lifted for this attempt.")
        return tree.root

    def eligible(self, tree: Tree, node: Node) -> bool:
        """Neither a throttled root nor the top of a dead branch."""
        children = tree.child_count(node.id)
        if node.id == ROOT_ID and children + tree.pending_children(ROOT_ID) >= self._settings.n_root:
            return False
        return children <= self._settings.n_child or not tree.all_children_failed(node.id)

    def _best(self, tree: Tree) -> list[Node]:
        """The eligible nodes of lowest score: several when they tie, every failed one when nothing else is left."""
        best: list[Node] = []
        for node in tree.ranked():
            if best and node.runtime_ms != best[0].runtime_ms:
                break
            if self.eligible(tree, node):
                best.append(node)
        return best or [node for node in tree.expandable() if node.failed and self.eligible(tree, node)]
