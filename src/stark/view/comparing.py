"""Two stores side by side, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stark.comparison import Comparison, attempts_of
from stark.results import RunResult
from stark.view.report_facts import models_of
from stark.view.tables import Table

NOTE = (
    "Speed-up over eager as measured in each store, in the finals where there are some: geometric mean over seeds, a "
    "failed run counted as 1."
)


def conditions(name: str, folder: Path, results: Sequence[RunResult]) -> str:
    """What the runs of a store were made with and judged by."""
    facts = ((run.score, run.device, str(attempts_of(run))) for run in results)
    scores, devices, attempts = (", ".join(sorted(set(told))) for told in zip(*facts, strict=True))
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
    whole = {"tasks": "count", "B / A": "times", "95 % from": "times", "to": "times", "p": "number"}
    whole |= {"pairs solved by A only": "count", "by B only": "count"}
    total = (found.tasks, found.ratio, found.low, found.high, found.p, found.only_a, found.only_b)
    tables = [
        Table("tasks", "Task by task", columns, rows, NOTE),
        Table("left-out", "Not compared", {**what, "why": "text"}, rest),
        Table("overall", "All together", whole, [total], found.verdict),
    ]
    return [table for table in tables if table.rows]


_SOLVED = {(True, True): "both", (True, False): "A", (False, True): "B", (False, False): "neither"}
