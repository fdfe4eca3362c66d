"""The result of a run."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stark.capture.live import Live, make_model, make_module, put_back, save_module
from stark.core.records import EndReason, Final, Spend
from stark.core.tree import Node
from stark.evaluation.verification import contradict


@dataclass(frozen=True, repr=False)
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
    live: Live | None = None  # the module that was captured

    def __repr__(self) -> str:
        return f"<stark.Result: {self._summary}; {self.attempts} attempts, run {self.run_id}>"

    def _repr_html_(self) -> str:
        """The result as a small table, for a notebook."""
        root_ms, best_ms = self.root.runtime_ms, self.best.runtime_ms if self.best else None
        rows = [("result", self._summary), ("original", _format_ms(root_ms)), ("best", _format_ms(best_ms))]
        rows += [("attempts", str(self.attempts)), ("ended", str(self.reason)), ("run", self.run_id)]
        cells = "".join(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in rows)
        return f"<table>{cells}</table>"

    @property
    def _summary(self) -> str:
        if self.best is None or self.speedup is None:
            return "nothing correct was found"
        return f"{self.speedup:.2f}x as fast" if self.improved else "nothing faster was found"

    @property
    def drop_in(self) -> str | None:
        """The source of a file that takes the model's place; None if there is none, or nothing is faster."""
        found = self.final.drop_in if self.final else None
        return found.source if self.improved and found is not None and found.holds else None

    @cached_property
    def module(self) -> Any:
        """A module for the place of the original: the drop-in, or the original itself if nothing is faster."""
        if self.live is not None:
            return put_back(self.drop_in, self.live) if self.drop_in else self.live.module
        assert self.root.source is not None
        return make_module(self.drop_in, self.root.source) if self.drop_in else make_model(self.root.source)

    def save(self, path: str | Path) -> Path:
        """Write ``module`` with weights and code to a file; ``stark.load`` reads it."""
        sources = [each for each in (self.drop_in, None if self.live else self.root.source) if each]
        save_module(self.module, Path(path), sources)
        return Path(path)

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


def _format_ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} ms"
