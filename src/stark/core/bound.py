"""The share of the speed of light that a node reaches.

The bound is that of the algebra as the reference writes it. A kernel that is clearly faster found shorter algebra. From
then on the bound is the time to move the inputs and outputs, which no algebra shortens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stark.core.tree import ROOT_ID, Node, Tree
from stark_worker.protocol.bound import Bound, Certainty

BEATEN = 0.95  # of the bound: a time below it is no error of a measured peak


@dataclass(frozen=True)
class SpeedOfLight:
    """The bound of a task, given its fastest kernel so far.

    ``bound_ms`` is the bound that counts now; None if shorter algebra was found and nothing is known to limit it.
    ``is_followed`` is true if it is not the reference's bound, because a kernel beats that.
    """

    bound: Bound
    bound_ms: float | None
    is_followed: bool = False

    @property
    def is_certain(self) -> bool:
        """True if no kernel as exact as the reference should beat the bound that counts now."""
        return self.bound_ms is not None and (self.is_followed or self.bound.certainty is Certainty.CERTAIN)

    def share(self, runtime_ms: float | None) -> float | None:
        """Return the share of the bound that a time reaches, 1.0 being the speed of light; None if it is not known."""
        return self.bound_ms / runtime_ms if self.bound_ms is not None and runtime_ms else None


def speed_of_light(bound: Bound | None, best_ms: float | None) -> SpeedOfLight | None:
    """Return the bound that counts, given the time of the fastest correct kernel; None if no bound was found."""
    if bound is None:
        return None
    if best_ms is None or best_ms >= BEATEN * bound.bound_ms:
        return SpeedOfLight(bound, bound.bound_ms)
    is_known = 0.0 < BEATEN * bound.floor_ms <= best_ms
    return SpeedOfLight(bound, bound.floor_ms if is_known else None, is_followed=True)


def tree_speed_of_light(tree: Tree) -> SpeedOfLight | None:
    """Return the bound that counts in a tree at this moment; None before its root is there."""
    if ROOT_ID not in tree:
        return None
    best = tree.best
    return speed_of_light(tree.root.report.bound, best.runtime_ms if best else None)


def stored_speed_of_light(nodes: Iterable[Node]) -> SpeedOfLight | None:
    """Return the same for the nodes of a stored run."""
    return tree_speed_of_light(Tree(nodes))
