"""The share of the speed of light that a node reaches.

The bound is that of the algebra as the reference writes it. A kernel that is clearly faster found shorter algebra. From
then on the bound is the time to move the inputs and outputs, which no algebra shortens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stark.core.tree import ROOT_ID, Judgement, Node, Tree
from stark_worker.protocol.bound import Bound, Certainty
from stark_worker.protocol.report_text import format_share

BEATEN = 0.95  # of the bound: a time below it is no error of a measured peak


@dataclass(frozen=True)
class Rates:
    """The least rates at which a kernel moves and computes: the least work of its task in its time."""

    gb_s: float
    tflops: float

    def __str__(self) -> str:
        computed = f", {self.tflops:.3g} TFLOP/s" if self.tflops else ""
        return f"at least {self.gb_s:.4g} GB/s{computed}"


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
    def certainty(self) -> Certainty:
        """The trust that the bound deserves that counts now; no algebra shortens the one that is followed."""
        if self.bound_ms is None:
            return Certainty.HINT
        return Certainty.CERTAIN if self.is_followed else self.bound.certainty

    @property
    def is_certain(self) -> bool:
        """True if no kernel as exact as the reference should beat the bound that counts now."""
        return self.certainty is Certainty.CERTAIN

    def share(self, runtime_ms: float | None) -> float | None:
        """Return the share of the bound that a time reaches, 1.0 being the speed of light; None if it is not known."""
        return self.bound_ms / runtime_ms if self.bound_ms is not None and runtime_ms else None

    def describe(self, runtime_ms: float | None) -> str:
        """Return the share that a time reaches in words, with a mark if the bound is a hint; empty if not known."""
        share = self.share(runtime_ms)
        return "" if share is None else format_share(share) + ("" if self.is_certain else " (a hint)")

    def rates(self, runtime_ms: float | None) -> Rates | None:
        """Return the rates that a time means; None without a time, or if shorter algebra needs less work."""
        if not runtime_ms or self.is_followed:
            return None
        work = self.bound.work
        return Rates(work.moved_bytes / runtime_ms / 1e6, sum(work.operations.values()) / runtime_ms / 1e9)


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


def judged_speed_of_light(bound: Bound | None, judgements: Iterable[Judgement]) -> SpeedOfLight | None:
    """Return the same from judgements: the times of the search decide whether a bound is beaten, in every view."""
    times = [each.runtime_ms for each in judgements if each.runtime_ms is not None and each.id != ROOT_ID]
    return speed_of_light(bound, min(times, default=None))
