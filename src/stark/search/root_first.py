"""Epsilon-greedy that starts several attempts from the root and never builds on a duplicate."""

from __future__ import annotations

from random import Random

from stark.core.settings import SearchSettings
from stark.core.tree import ROOT_ID, Node, Tree
from stark.search.epsilon_greedy import EpsilonGreedy


class RootFirst(EpsilonGreedy):
    """Selects the root for the first attempts, so that several designs exist before the fastest is refined.

    A leaf has no child with source and none in flight: an unusable reply does not end it, and two attempts do not
    explore it at once.
    """

    def __init__(self, settings: SearchSettings) -> None:
        super().__init__(settings)
        self._root_first = settings.root_first

    def select(self, tree: Tree, rng: Random) -> Node | None:
        begun = tree.child_count(ROOT_ID) + tree.pending_children(ROOT_ID)
        return tree.root if begun < self._root_first else super().select(tree, rng)

    def leaves(self, tree: Tree) -> list[Node]:
        pending = set(tree.pending_parents())
        return [
            node
            for node in tree.expandable()
            if node.id not in pending
            and self.eligible(tree, node)
            and all(child.source is None for child in tree.children(node.id))
        ]

    def eligible(self, tree: Tree, node: Node) -> bool:
        return node.same_as is None and super().eligible(tree, node)
