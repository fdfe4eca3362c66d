"""Policies without parameters or memory, among them those of the paper's baselines."""

from __future__ import annotations

from random import Random

from stark.core.settings import SearchSettings
from stark.core.tree import Node, Tree


class Greedy:
    """Selects the fastest correct node, including the root."""

    def __init__(self, settings: SearchSettings) -> None:
        pass

    def select(self, tree: Tree, rng: Random) -> Node | None:
        ranked = tree.ranked()
        best = next(ranked)
        ties = [best]
        for node in ranked:
            if node.runtime_ms != best.runtime_ms:
                break
            ties.append(node)
        return rng.choice(ties)


class RandomChoice:
    """Selects any finished node with source."""

    def __init__(self, settings: SearchSettings) -> None:
        pass

    def select(self, tree: Tree, rng: Random) -> Node | None:
        return rng.choice(tree.expandable())


class AlwaysRoot:
    """Best-of-K: selects the root always."""

    def __init__(self, settings: SearchSettings) -> None:
        pass

    def select(self, tree: Tree, rng: Random) -> Node | None:
        return tree.root


class LastAttempt:
    """Iterative refinement: selects the latest attempt with source, failed or not."""

    def __init__(self, settings: SearchSettings) -> None:
        pass

    def select(self, tree: Tree, rng: Random) -> Node | None:
        return max(tree.expandable(), key=lambda node: node.id)


class RootOrRepair:
    """Best-of-K with repairs: selects the last attempt if it failed and its chain of repairs is short."""

    def __init__(self, settings: SearchSettings) -> None:
        self._max_repairs = settings.max_repairs

    def select(self, tree: Tree, rng: Random) -> Node | None:
        last = max(tree, key=lambda node: node.id)
        worth_repair = last.failed and last.source is not None and not tree.pending_children(last.id)
        return last if worth_repair and _repairs(tree, last) < self._max_repairs else tree.root


def _repairs(tree: Tree, node: Node) -> int:
    """Return the number of repairs in a row that led to this node."""
    count = 0
    for parent in tree.ancestors(node.id):
        if not parent.failed:
            break
        count += 1
    return count
