"""Two stores side by side, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stark.analysis.comparison import Comparison, Overall
from stark.analysis.results import RunResult
from stark.analysis.statistics import ENOUGH
from stark.report.header import models_of
from stark.report.table import Row, Table

NOTE = (
    "Speed-up over eager as measured in each store, in the finals where there are some: geometric mean over seeds. A "
    "run that failed or has only a slower kernel counts as 1: its user keeps the reference."
)
NO_INTERVAL = f"No interval is given over fewer than {ENOUGH} tasks, nor where all tasks are alike."

SEVERAL = "Each verdict stands by itself: where nothing differs, one in twenty finds a difference by chance."


def conditions(name: str, folder: Path, results: Sequence[RunResult]) -> str:
    """What the runs of a store were made with and judged by."""
    counted = [run for run in results if run.complete] or results
    facts = ((run.score, run.device, str(run.allowed)) for run in counted)
    scores, devices, attempts = (" and ".join(sorted(set(told))) for told in zip(*facts, strict=True))
    return f"{name}: {folder}, by {models_of(results)}. Score: {scores}. Device: {devices}. Attempts: {attempts}."


def comparison_tables(found: Comparison) -> list[Table]:
    """Task by task, what is left out, then all together."""
    what = {"task": "text", "method": "text", "score": "text"}
    columns = {**what, "A": "times", "B": "times", "B / A": "times", "solved by": "text"}
    rows = [
        (pair.task, pair.method, pair.score, pair.a, pair.b, pair.ratio, _SOLVED[pair.solved_a, pair.solved_b])
        for pair in found.pairs
    ]
    rest = [(each.task, each.method, each.score, each.why) for each in found.left_out]
    tables = [
        Table("tasks", "Task by task", columns, rows, NOTE),
        Table("left-out", "Not compared", {**what, "why": "text"}, rest),
        _together(found.overall),
    ]
    return [table for table in tables if table.rows]


def _together(overall: Sequence[Overall]) -> Table:
    columns = {"method": "text", "score": "text", "tasks": "count"}
    columns |= {"B / A": "times", "95 % from": "times", "to": "times", "p of speed": "number"}
    columns |= {"solved by A only": "count", "by B only": "count", "p of solved": "number"}
    note = _verdicts(overall)
    if any(one.interval is None for one in overall):
        note.append(NO_INTERVAL)
    title = "All tasks together, by method and score"
    return Table("overall", title, columns, list(map(_total, overall)), "\n".join(note))


def _total(one: Overall) -> Row:
    speed = (one.ratio, *(one.interval or (None, None)), one.p)
    return one.method, one.score, one.tasks, *speed, one.only_a, one.only_b, one.p_solved


def _verdicts(overall: Sequence[Overall]) -> list[str]:
    """One of each method and score, which are named where there are several."""
    if len(overall) == 1:
        return [overall[0].verdict]
    return [*(f"{one.method} by {one.score}: {one.verdict}" for one in overall), SEVERAL]


_SOLVED = {(True, True): "both", (True, False): "A", (False, True): "B", (False, False): "neither"}
