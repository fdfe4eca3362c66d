"""What a benchmark will probably take, before it takes anything (``stark bench --dry-run``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stark.api import models_to_estimate
from stark.bench import record_of
from stark.estimate import estimate
from stark.grid import Cell, Kind
from stark.interfaces import Usage
from stark.models import describe
from stark_worker.protocol import DeviceFacts, Target

SECONDS_PER_CALL = 40.0
# What a lane is taken for; on a GPU 3 seconds were measured (benchmarks/results/evaluator-nvidia-h200.json).
SECONDS_PER_EVALUATION = {Target.CUDA: 4.0, Target.TRITON: 4.0, Target.CPU: 6.0}


@dataclass(frozen=True)
class Forecast:
    """Expected totals; money is None where a price is not known. Hours are for one lane."""

    models: tuple[str, ...]
    attempts: int
    calls: int
    usage: Usage
    usd: float | None
    most_usd: float
    hours: float


def forecast(cells: Sequence[Cell], at_once: int) -> Forecast:
    """Calls, tokens, money and hours of a grid."""
    unknown = DeviceFacts("the evaluating machine", cells[0].settings.evaluation.target)
    rows = [
        row
        for cell in cells
        if cell.kind is Kind.SEARCH
        for row in estimate(record_of(cell, unknown), cell.settings, models_to_estimate(cell.settings))
    ]
    evaluations = sum(1 + (_attempts(cell) or len(cell.given)) for cell in cells)
    calls = sum(row.calls for row in rows)
    lane_s = evaluations * SECONDS_PER_EVALUATION[cells[0].settings.evaluation.target]
    known = [row.usd for row in rows if row.usd is not None]
    return Forecast(
        models=tuple(sorted({describe(row.model) for row in rows})),
        attempts=sum(map(_attempts, cells)),
        calls=calls,
        usage=Usage(sum(row.usage.input_tokens for row in rows), sum(row.usage.output_tokens for row in rows)),
        usd=sum(known) if len(known) == len(rows) else None,
        most_usd=sum(cell.settings.budget.usd for cell in cells if cell.kind is Kind.SEARCH),
        hours=max(lane_s, calls * SECONDS_PER_CALL / at_once) / 3600,
    )


def _attempts(cell: Cell) -> int:
    return cell.settings.budget.attempts if cell.kind is Kind.SEARCH else 0
