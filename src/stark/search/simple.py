"""Policies that need no memory of their own, among them those that turn the loop into the paper's baselines."""

from __future__ import annotations

from random import Random

from stark.core.settings import SearchSettings
from stark.core.tree import Node, Tree


class Greedy:
    """Always the fastest correct node, the root included."""

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
    """Any finished node with source."""

    def __init__(self, settings: SearchSettings) -> None:
        pass

    def select(self, tree: Tree, rng: Random) -> Node | None:
        return rng.choice(tree.expandable())


class AlwaysRoot:
    """Best-of-K: every attempt starts from the task."""

    def __init__(self, settings: SearchSettings) -> None:
        pass

    def select(self, tree: Tree, rng: Random) -> Node | None:
        return tree.root


class LastAttempt:
    """Iterative refinement: the latest attempt that has source, whatever became of it."""

    def __init__(self, settings: SearchSettings) -> None:
        pass

    def select(self, tree: Tree, rng: Random) -> Node | None:
        return max(tree.expandable(), key=lambda node: node.id)


class RootOrRepair:
    """Best-of-K, except that a failed last attempt is repaired while its chain of repairs is short."""

    def __init__(self, settings: SearchSettings) -> None:
        self._max_repairs = settings.max_repairs

    def select(self, tree: Tree, rng: Random) -> Node | None:
        last = max(tree, key=lambda node: node.id)
        worth_repair = last.failed and last.source is not None and not tree.pending_children(last.id)
        return last if worth_repair and _repairs(tree, last) < self._max_repairs else tree.root


def _repairs(tree: Tree, node: Node) -> int:
    """How many repairs in a row led to this node: a repair is what was made of a failed node."""
    count = 0
    for parent in tree.ancestors(node.id):
        if not parent.failed:
            break
        count += 1
    return count
