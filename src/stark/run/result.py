"""TODO."""

from __future__ import annotations

from dataclasses import dataclass

from stark.core.records import Final, Spend
from stark.core.tree import Node


@dataclass(frozen=True)
class Result:
    """What a run has found so far. ``reason`` says why it ended; ``final`` is the last word on the best candidate."""

    run_id: str
    root: Node
    best: Node | None
    attempts: int
    spent: Spend
    reason: str
    final: Final | None = None
    stopped: bool = False  # whether somebody asked for an end, though it may have come to its own

    @property
    def source(self) -> str | None:
        """The best candidate's source."""
        return self.best.source if self.best else None

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the reference the best candidate is: in its final, where one was held."""
        final = self.final.report if self.final else None
        if final and final.timing and final.rival:
            return final.rival.median_ms / final.timing.median_ms
        if self.best is None or self.best.runtime_ms is None or self.root.runtime_ms is None:
            return None
        return self.root.runtime_ms / self.best.runtime_ms

    @property
    def improved(self) -> bool:
        """Whether it is faster beyond doubt, or at least seems so where there was no final."""
        interval = self.final.speedup_interval if self.final else None
        return interval[0] > 1.0 if interval else self.speedup is not None and self.speedup > 1.0
