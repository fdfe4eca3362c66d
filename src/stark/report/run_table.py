"""The table with one row per run, for other programs and for questions about one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stark.analysis.groups import BASELINE_LABELS
from stark.analysis.results import RunResult
from stark.core.tree import Role
from stark.report.cost_tables import HOUR_S, classify_run
from stark.report.table import Table

FIRST = {"task": "text", "score": "text", "method": "text", "seed": "count", "kind": "text", "ended": "text"}
FIGURES = {"attempts": "count", "compiled": "count", "correct": "count", "reference ms": "number", "best ms": "number"}
BOUND = {"bound ms": "number", "share of the bound": "percent", "bound is": "text"}
TIMES = {"hours evaluating": "hours", "hours searching": "hours"}
SPENT = {"calls": "count", "tokens in": "count", "tokens out": "count", "money": "money, if any"}


def runs_table(results: Sequence[RunResult]) -> Table:
    """The outcome, figures, time and cost per role of every run, complete or not."""
    roles = sorted({role for run in results for role in run.usage})
    columns = {**FIRST, **FIGURES, **{f"speed {name}": "times" for name in BASELINE_LABELS.values()}}
    columns |= {**BOUND, **TIMES}
    columns |= {f"{role} {name}": form for role in roles for name, form in SPENT.items()}
    rows = [(*_made(run), *bound_cells(run), *_times(run), *_spent(run, roles)) for run in results]
    note = (
        "The reference's time was measured in turns with the best kernel. Runs that have not ended are unfinished and "
        "do not count."
    )
    return Table("runs", "Every run", columns, rows, note, is_listing=True)


def _made(run: RunResult) -> Iterator[Any]:
    yield from (run.task, run.score, run.method, run.seed, str(run.kind), str(classify_run(run)))
    found = run.metrics
    if found is None:
        yield from [None] * len(FIGURES)
    else:
        yield from (found.attempts, found.compiled, found.correct, found.paired_root_ms, found.best_ms)
    yield from (run.speedup(name) if name in run.baselines else None for name in BASELINE_LABELS)


def bound_cells(run: RunResult) -> tuple[float | None, float | None, str]:
    """Return the cells of the columns ``BOUND``: empty if none is stored, or if shorter algebra left none."""
    light, best_ms = run.light, run.metrics.best_ms if run.metrics else None
    if light is None or light.bound_ms is None:
        return None, None, ""
    return light.bound_ms, light.share(best_ms), str(light.certainty)


def _times(run: RunResult) -> Iterator[float | None]:
    yield from (run.evaluation_s / HOUR_S, run.wall_s / HOUR_S or None)


def _spent(run: RunResult, roles: Sequence[Role]) -> Iterator[Any]:
    for role in roles:
        if (used := run.usage.get(role)) is None:
            yield from (0, 0, 0, 0.0)
        else:
            yield from (used.calls, used.usage.input_tokens, used.usage.output_tokens, used.usd)
