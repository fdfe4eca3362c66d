"""Measures the progress of a benchmark and estimates what is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stark.bench.cell import Cell
from stark.core.records import Ending, Kind


@dataclass(frozen=True)
class BenchProgress:
    """The progress of a benchmark. What is left is estimated from the cost per attempt in this session."""

    cells: int
    ended: int
    attempts: int
    made: int
    usd: float | None  # None if a price is not known
    usd_left: float | None
    seconds_left: float | None


OnCellEnd = Callable[[Cell, Ending, BenchProgress], None]
OnNote = Callable[[str], None]


class ProgressMeter:
    """Measures the progress of one session over a grid."""

    def __init__(self, cells: Sequence[Cell], made: int, usd: float | None) -> None:
        self._cells = cells
        self._made_before, self._usd_before = made, usd or 0.0
        self._started = time.monotonic()

    def measure(self, made: Mapping[str, int], usd: float | None, has_ended: Callable[[Cell], bool]) -> BenchProgress:
        """Return the progress. ``made`` counts the attempts by cell id."""
        open_searches = [cell for cell in self._cells if cell.kind is Kind.SEARCH and not has_ended(cell)]
        left = sum(cell.settings.budget.attempts - made[cell.id] for cell in open_searches)
        total = sum(made.values())
        fresh = total - self._made_before
        elapsed = time.monotonic() - self._started
        return BenchProgress(
            cells=len(self._cells),
            ended=sum(map(has_ended, self._cells)),
            attempts=total + left,
            made=total,
            usd=usd,
            usd_left=(usd - self._usd_before) / fresh * left if usd is not None and fresh else None,
            seconds_left=elapsed / fresh * left if fresh else None,
        )
