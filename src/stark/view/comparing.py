"""Two stores side by side, as tables."""

from __future__ import annotations

from stark.comparison import Comparison
from stark.view.tables import Table

NOTE = (
    "Speed-up over eager as measured in each store, in the finals where there are some: geometric mean over seeds, a "
    "failed run counted as 1."
)


def comparison_tables(found: Comparison) -> list[Table]:
    """Task by task, then all together."""
    columns = {"task": "text", "method": "text", "A": "times", "B": "times", "B / A": "times", "solved by": "text"}
    rows = [
        (pair.task, pair.method, pair.a, pair.b, pair.ratio, _SOLVED[pair.solved_a, pair.solved_b])
        for pair in found.pairs
    ]
    whole = {"tasks": "count", "B / A": "times", "95 % from": "times", "to": "times", "p": "number"}
    whole |= {"pairs solved by A only": "count", "by B only": "count"}
    total = (found.tasks, found.ratio, found.low, found.high, found.p, found.only_a, found.only_b)
    return [
        Table("tasks", "Task by task", columns, rows, NOTE),
        Table("overall", "All together", whole, [total], found.verdict),
    ]


_SOLVED = {(True, True): "both", (True, False): "A", (False, True): "B", (False, False): "neither"}
