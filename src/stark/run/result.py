"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass

from stark.core.records import EndReason, Final, Spend
from stark.core.tree import Node
from stark.evaluation.verification import contradict


@dataclass(frozen=True)
class Result:
    """The result of a run. ``reason`` is why it ended; ``final`` is the final check of the best candidate."""

    run_id: str
    root: Node
    best: Node | None
    attempts: int
    spent: Spend
    reason: EndReason
    final: Final | None = None
    stopped: bool = False  # by the user, even if all attempts were made

    @property
    def source(self) -> str | None:
        """The best candidate's source."""
        return self.best.source if self.best else None

    @property
    def speedup(self) -> float | None:
        """The best candidate's speed relative to the reference, from its final check if there is one."""
        final = self.final.report if self.final else None
        if final and final.timing and final.opponent:
            return final.opponent.median_ms / final.timing.median_ms
        if self.best is None or self.best.runtime_ms is None or self.root.runtime_ms is None:
            return None
        return self.root.runtime_ms / self.best.runtime_ms

    @property
    def contradiction(self) -> str | None:
        """The two measurements of the best candidate's speed that cannot both be right; None if all agree."""
        searched = self.best.report.speedup_interval if self.best else None
        confirmed = self.final.speedup_interval if self.final else None
        if searched is None or confirmed is None or not contradict(searched, confirmed):
            return None
        return "in the search {:.2f}x to {:.2f}x, in the final check {:.2f}x to {:.2f}x".format(*searched, *confirmed)

    @property
    def improved(self) -> bool:
        """True if the best candidate is faster with 99 % confidence, or by its medians if there was no final check."""
        if self.contradiction:
            return False
        interval = self.final.speedup_interval if self.final else None
        return interval[0] > 1.0 if interval else self.speedup is not None and self.speedup > 1.0
