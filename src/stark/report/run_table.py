"""The table that has a row for every run: for other programs, and for who wants to know about one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stark.analysis.groups import SHORT
from stark.analysis.results import RunResult
from stark.core.tree import Role
from stark.report.cost_tables import HOUR_S, became
from stark.report.table import Table

FIRST = {"task": "text", "score": "text", "method": "text", "seed": "count", "kind": "text", "ended": "text"}
FIGURES = {"attempts": "count", "compiled": "count", "correct": "count", "reference ms": "number", "best ms": "number"}
TIMES = {"hours evaluating": "hours", "hours searching": "hours"}
SPENT = {"calls": "count", "tokens in": "count", "tokens out": "count", "money": "money, if any"}


def runs_table(results: Sequence[RunResult]) -> Table:
    """What became of every run, complete or not: its figures, its time, and what each role has spent."""
    roles = sorted({role for run in results for role in run.usage})
    columns = {**FIRST, **FIGURES, **{f"speed {name}": "times" for name in SHORT.values()}, **TIMES}
    columns |= {f"{role} {name}": form for role in roles for name, form in SPENT.items()}
    rows = [(*_made(run), *_times(run), *_spent(run, roles)) for run in results]
    note = "The reference's time is that beside the best kernel. Runs without an end are unfinished, and not counted."
    return Table("runs", "Every run", columns, rows, note, listing=True)


def _made(run: RunResult) -> Iterator[Any]:
    yield from (run.task, run.score, run.method, run.seed, str(run.kind), became(run))
    found = run.metrics
    if found is None:
        yield from [None] * len(FIGURES)
    else:
        yield from (found.attempts, found.compiled, found.correct, found.beside_ms, found.best_ms)
    yield from (run.speedup(name) if name in run.baselines else None for name in SHORT)


def _times(run: RunResult) -> Iterator[float | None]:
    yield from (run.evaluation_s / HOUR_S, run.wall_s / HOUR_S or None)


def _spent(run: RunResult, roles: Sequence[Role]) -> Iterator[Any]:
    for role in roles:
        if (used := run.usage.get(role)) is None:
            yield from (0, 0, 0, 0.0)
        else:
            yield from (used.calls, used.usage.input_tokens, used.usage.output_tokens, used.usd)
