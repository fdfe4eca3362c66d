"""The paper's policy: epsilon-greedy with root throttling and dead-branch pruning."""

from __future__ import annotations

import logging
from random import Random

from stark.core.settings import SearchSettings
from stark.core.tree import ROOT_ID, Node, Tree

log = logging.getLogger(__name__)


class EpsilonGreedy:
    """Selects mostly the best eligible node, sometimes an eligible leaf."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings

    def select(self, tree: Tree, rng: Random) -> Node | None:
        if rng.random() < self._settings.epsilon:
            leaves = self.leaves(tree)
            if leaves:
                return rng.choice(leaves)
        best = self._best(tree)
        if best:
            return rng.choice(best)
        if tree.in_flight:
            return None
        log.warning("No node is eligible: this attempt builds on the root despite its throttle.")
        return tree.root

    def leaves(self, tree: Tree) -> list[Node]:
        """Return the leaves to explore. A leaf has no failed children, so only the root may be ineligible."""
        return [leaf for leaf in tree.leaves() if leaf.id != ROOT_ID or self.eligible(tree, leaf)]

    def eligible(self, tree: Tree, node: Node) -> bool:
        """True unless the node is a throttled root or the top of a dead branch."""
        children = tree.child_count(node.id)
        if node.id == ROOT_ID and children + tree.pending_children(ROOT_ID) >= self._settings.n_root:
            return False
        return children <= self._settings.n_child or not tree.all_children_failed(node.id)

    def _best(self, tree: Tree) -> list[Node]:
        """Return the fastest eligible nodes, several if they tie; or every failed one if no correct one is eligible."""
        best: list[Node] = []
        for node in tree.ranked():
            if best and node.runtime_ms != best[0].runtime_ms:
                break
            if self.eligible(tree, node):
                best.append(node)
        return best or [node for node in tree.expandable() if node.failed and self.eligible(tree, node)]
