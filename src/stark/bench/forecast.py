"""Estimates the calls, money and hours of a benchmark before it starts (``stark bench --dry-run``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stark.bench.cell import Cell, make_run_record
from stark.core.chat import Usage
from stark.core.records import Kind
from stark.models.open import describe_model
from stark.run.assembly import Estimating, models_to_estimate
from stark.run.estimate import estimate
from stark_worker.protocol.baselines import COMPILED
from stark_worker.protocol.report import DeviceFacts
from stark_worker.protocol.request import Target


@dataclass(frozen=True)
class Pace:
    """Assumed seconds per step.

    ``compiled`` and ``tuned`` are torch.compile and max-autotune, with compiling. ``stock_build`` builds a winner with
    torch's own toolchain. A ``final`` is two evaluations, each in turns with the reference.
    """

    evaluation: float
    compiled: float
    tuned: float
    stock_build: float
    call: float = 40.0

    @property
    def final(self) -> float:
        return 4 * self.evaluation


# GPU: means measured on an H200 (evaluator-nvidia-h200, baselines-gpu and build-nvidia-h200 in benchmarks/results).
# CPU: the build was measured (build-cpu), the rest is a guess.
PACES = {
    Target.CUDA: Pace(evaluation=4.0, compiled=14.0, tuned=46.0, stock_build=60.0),
    Target.TRITON: Pace(evaluation=4.0, compiled=14.0, tuned=46.0, stock_build=0.0),
    Target.CPU: Pace(evaluation=6.0, compiled=30.0, tuned=30.0, stock_build=45.0),
}


@dataclass(frozen=True)
class Forecast:
    """Expected totals at this pace, for one lane or as many as the settings ask of a cluster.

    ``usd`` is None if a price is not known; then ``most_usd`` does not hold. ``most_tokens`` is None without a limit.
    """

    models: tuple[str, ...]
    attempts: int
    calls: int
    usage: Usage
    usd: float | None
    most_usd: float
    most_tokens: int | None
    hours: float
    pace: Pace


def forecast(cells: Sequence[Cell], parallel_runs: int, both_scores: bool = False) -> Forecast:
    """Estimate calls, tokens, money and hours of a grid, as if nothing of it were stored."""
    target = cells[0].settings.evaluation.target
    pace = PACES[target]
    searches = [cell for cell in cells if cell.kind is Kind.SEARCH]
    opened: Estimating = {}  # to open a provider takes a tenth of a second, and a grid has hundreds of searches
    estimates = [
        estimate(
            make_run_record(cell, DeviceFacts("the evaluating machine", target)),
            cell.settings,
            models_to_estimate(cell.settings, opened),
        )
        for cell in searches
    ]
    rows = [row for each in estimates for row in each]
    winner = ""  # its source does not matter here
    everything = [*cells, *(cell.rescored(winner) for cell in searches if both_scores)]
    lane_s = _count_references(everything) * pace.evaluation + sum(_lane_s(cell, pace) for cell in everything)
    if target is Target.CPU:  # builds take turns in the lane, because a compiler would disturb the clock
        lane_s += sum(_build_s(cell, pace) for cell in searches)
    alone_s = [
        _alone_s(cell, sum(row.calls for row in each), pace) for cell, each in zip(searches, estimates, strict=True)
    ]
    known = [row.usd for row in rows if row.usd is not None]
    limits = [cell.settings.budget.tokens for cell in searches]
    return Forecast(
        models=tuple(sorted({describe_model(row.model) for row in rows})),
        attempts=sum(cell.settings.budget.attempts for cell in searches),
        calls=sum(row.calls for row in rows),
        usage=Usage(sum(row.usage.input_tokens for row in rows), sum(row.usage.output_tokens for row in rows)),
        usd=sum(known) if len(known) == len(rows) else None,
        most_usd=sum(cell.settings.budget.usd for cell in searches),
        most_tokens=sum(filter(None, limits)) if limits and None not in limits else None,
        hours=max([lane_s / (cells[0].settings.evaluation.lanes or 1), sum(alone_s) / parallel_runs, *alone_s]) / 3600,
        pace=pace,
    )


def _count_references(cells: Sequence[Cell]) -> int:
    """Count the references to judge: one per task and score."""
    return len({(cell.task.name, cell.settings.evaluation.score) for cell in cells})


def _alone_s(cell: Cell, calls: int, pace: Pace) -> float:
    """Return the seconds of a search that never waits for the lane; `jobs` of its attempts run in parallel."""
    attempts_s = calls * pace.call + cell.settings.budget.attempts * pace.evaluation
    return attempts_s / cell.settings.jobs + _final_s(cell, pace) + _build_s(cell, pace)


def _final_s(cell: Cell, pace: Pace) -> float:
    return pace.final if cell.settings.evaluation.final else 0.0


def _build_s(cell: Cell, pace: Pace) -> float:
    return pace.stock_build if cell.settings.evaluation.final else 0.0


def _lane_s(cell: Cell, pace: Pace) -> float:
    """Return the seconds that a cell occupies the lane, without the reference of its task."""
    if cell.kind is Kind.SEARCH:
        return cell.settings.budget.attempts * pace.evaluation + _final_s(cell, pace)
    if cell.kind is Kind.BASELINES:
        own = (pace.compiled if given.label == COMPILED else pace.tuned for given in cell.given)
        return sum(own) + len(cell.given) * pace.evaluation  # each in turns with the reference
    if cell.kind is Kind.RESCORED and cell.settings.evaluation.final:  # the final judges the winner by both scores
        return 0.0
    return len(cell.given) * pace.evaluation
