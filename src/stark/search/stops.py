"""Stops: a search ends when its best is at the bound, or when several attempts in a row brought no gain."""

from __future__ import annotations

from stark.core.bound import tree_speed_of_light
from stark.core.records import EndReason
from stark.core.settings import BudgetSettings
from stark.core.tree import ROOT_ID, Node, Tree, attempts_of

MIN_GAIN = 0.01  # a smaller one is no gain, however small the noise


def find_stop(tree: Tree, budget: BudgetSettings, bound_ms: float | None = None) -> EndReason | None:
    """Return the reason to begin no further attempt. It depends on the finished nodes alone.

    Only a certain bound ends a run. ``bound_ms`` replaces the tree's.
    """
    best = tree.best
    if best is None or best.runtime_ms is None:
        return None
    limit = tree_speed_of_light(tree)
    known_ms = limit.bound_ms if limit and limit.is_certain else None
    least_ms = known_ms if bound_ms is None else bound_ms
    if least_ms is not None and budget.stop_at_bound and least_ms / best.runtime_ms >= budget.stop_at_bound:
        return EndReason.BOUND
    if budget.stop_after and count_without_gain(tree) >= budget.stop_after:
        return EndReason.PLATEAU
    return None


def explain_no_bound(tree: Tree) -> str | None:
    """Return why a bound cannot end the run; None if it can."""
    limit = tree_speed_of_light(tree)
    if limit is not None and limit.is_certain:
        return None
    doubts = "; ".join(str(doubt) for doubt in limit.bound.doubts) if limit else ""
    why = f"The bound of this task is only a hint: {doubts}" if doubts else "The bound of this task is not known"
    return f"{why}. So --stop-at-bound cannot end the run."


def count_without_gain(tree: Tree) -> int:
    """Return the number of attempts since the last gain, in the order in which they landed."""
    leader: Node | None = None
    count = 0
    for node in tree:
        if node.id == ROOT_ID:
            leader = node
        elif _is_gain(node, leader):
            leader, count = node, 0
        elif node in attempts_of([node]):
            count += 1
    return count


def _is_gain(node: Node, leader: Node | None) -> bool:
    """True if a node is faster than the leader beyond the noise of both."""
    mine, other = node.report.timing, leader.report.timing if leader else None
    if mine is None or other is None:
        return mine is not None
    is_clear = mine.interval_ms[1] < other.interval_ms[0]
    return is_clear and mine.median_ms < other.median_ms * (1 - MIN_GAIN)
