"""Measures the progress of a benchmark and estimates what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stark.bench.cell import Cell
from stark.core.records import Ending, Kind, RunRecord
from stark.core.steps import Work
from stark.progress.board import RunPlan
from stark_worker.protocol.baselines import COMPILED


@dataclass(frozen=True)
class BenchProgress:
    """The progress of a benchmark. The money left is estimated from the cost per attempt in this session."""

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

    def measure(
        self,
        made: Mapping[str, int],
        usd: float | None,
        has_ended: Callable[[Cell], bool],
        seconds_left: float | None = None,
    ) -> BenchProgress:
        """Return the progress. ``made`` counts the attempts by cell id."""
        open_searches = [cell for cell in self._cells if cell.kind is Kind.SEARCH and not has_ended(cell)]
        left = sum(cell.settings.budget.attempts - made[cell.id] for cell in open_searches)
        total = sum(made.values())
        fresh = total - self._made_before
        return BenchProgress(
            cells=len(self._cells),
            ended=sum(map(has_ended, self._cells)),
            attempts=total + left,
            made=total,
            usd=usd,
            usd_left=(usd - self._usd_before) / fresh * left if usd is not None and fresh else None,
            seconds_left=seconds_left,
        )


def plan_cell(cell: Cell, record: RunRecord) -> RunPlan:
    """Return the work of a cell. A winner's final covers both scores, so it is not judged again."""
    if cell.kind is Kind.BASELINES:
        return RunPlan.of(record, (Work.COMPILE if each.label == COMPILED else Work.AUTOTUNE for each in cell.given))
    if cell.kind is Kind.RESCORED:
        return RunPlan.of(record, () if cell.settings.evaluation.final else (Work.GIVEN,))
    return RunPlan.of(record, (Work.GIVEN for _ in cell.given))
