"""Monte-Carlo tree search with UCT: descend by mean reward plus an exploration bonus."""

from __future__ import annotations

import math
from random import Random

from stark.core.settings import SearchSettings
from stark.core.tree import Node, Tree


class Mcts:
    """Selects a node with at most ``n_child`` children; from a larger one it descends to the most promising child.

    The reward of a node is its speedup s over the root as s / (1 + s), or 0 if it failed. Attempts in flight count as
    visits without reward, so that parallel attempts spread out.
    """

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings

    def select(self, tree: Tree, rng: Random) -> Node | None:
        visits, rewards = _statistics(tree)
        node = tree.root
        while tree.child_count(node.id) + tree.pending_children(node.id) > self._settings.n_child:
            children = [child for child in tree.children(node.id) if child.source is not None]
            if not children:
                break
            bonus = self._settings.uct_c * math.sqrt(math.log(visits[node.id]))
            scored = [
                (rewards[child.id] / visits[child.id] + bonus / math.sqrt(visits[child.id]), child)
                for child in children
            ]
            best = max(score for score, _ in scored)
            node = rng.choice([child for score, child in scored if score == best])
        return node


def _statistics(tree: Tree) -> tuple[dict[int, int], dict[int, float]]:
    """Return visits and summed rewards of every subtree. A parent lands before its child, hence the reversed order."""
    nodes = list(tree)
    visits = {node.id: 1 for node in nodes}
    for parent_id in tree.pending_parents():
        visits[parent_id] += 1
    rewards = {node.id: _reward(node, tree.root) for node in nodes}
    for node in reversed(nodes):
        if node.parent_id is not None:
            visits[node.parent_id] += visits[node.id]
            rewards[node.parent_id] += rewards[node.id]
    return visits, rewards


def _reward(node: Node, root: Node) -> float:
    if node.runtime_ms is None or root.runtime_ms is None:
        return 0.0
    speedup = root.runtime_ms / node.runtime_ms
    return speedup / (1.0 + speedup)
