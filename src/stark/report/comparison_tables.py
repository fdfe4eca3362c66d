"""The comparison of two stores as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stark.analysis.comparison import Comparison, Overall
from stark.analysis.results import RunResult
from stark.analysis.statistics import MIN_PAIRS
from stark.report.header import format_models
from stark.report.table import Row, Table

SPEEDUP_NOTE = (
    "Speed-up over eager: geometric mean over seeds, from the final checks if there were any. A run without a kernel, "
    "or with a slower one, counts as 1. A task is solved by a correct kernel, even one slower than eager."
)
NO_INTERVAL = f"No interval is given for fewer than {MIN_PAIRS} tasks, nor if all tasks are equal."

SEVERAL_VERDICTS = "Each verdict stands alone: without any real difference, one in twenty is significant by chance."


def describe_store(name: str, folder: Path, results: Sequence[RunResult]) -> str:
    """Name the chat models, scores, devices and budgets of a store's runs."""
    counted = [run for run in results if run.complete] or results
    facts = ((run.score, run.device, str(run.allowed_attempts)) for run in counted)
    scores, devices, attempts = (" and ".join(sorted(set(values))) for values in zip(*facts, strict=True))
    return f"{name}: {folder}, by {format_models(results)}. Score: {scores}. Device: {devices}. Attempts: {attempts}."


def comparison_tables(found: Comparison) -> list[Table]:
    """One table of tasks, one of what is left out, one of all tasks together."""
    what = {"task": "text", "method": "text", "score": "text"}
    columns = {**what, "A": "times", "B": "times", "B / A": "times", "solved by": "text"}
    rows = [
        (pair.task, pair.method, pair.score, pair.a, pair.b, pair.ratio, _SOLVED[pair.solved_a, pair.solved_b])
        for pair in found.pairs
    ]
    rest = [(each.task, each.method, each.score, each.why) for each in found.left_out]
    tables = [
        Table("tasks", "Task by task", columns, rows, SPEEDUP_NOTE),
        Table("left-out", "Not compared", {**what, "why": "text"}, rest),
        _overall_table(found.overall),
    ]
    return [table for table in tables if table.rows]


def _overall_table(overall: Sequence[Overall]) -> Table:
    columns = {"method": "text", "score": "text", "tasks": "count"}
    columns |= {"B / A": "times", "95 % from": "times", "to": "times", "p of speed": "number"}
    columns |= {"solved by A only": "count", "by B only": "count", "p of solved": "number"}
    note = _format_verdicts(overall)
    if any(one.interval is None for one in overall):
        note.append(NO_INTERVAL)
    title = "All tasks together, by method and score"
    return Table("overall", title, columns, list(map(_overall_row, overall)), "\n".join(note))


def _overall_row(one: Overall) -> Row:
    speed = (one.ratio, *(one.interval or (None, None)), one.p)
    return one.method, one.score, one.tasks, *speed, one.only_a, one.only_b, one.p_solved


def _format_verdicts(overall: Sequence[Overall]) -> list[str]:
    """One verdict per method and score; these are named if there are several."""
    if len(overall) == 1:
        return [overall[0].verdict]
    return [*(f"{one.method} by {one.score}: {one.verdict}" for one in overall), SEVERAL_VERDICTS]


_SOLVED = {(True, True): "both", (True, False): "A", (False, True): "B", (False, False): "neither"}
