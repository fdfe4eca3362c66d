"""Shows the blocks of a model by what a faster one would bring to the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from stark.cli.terminal.screen import console, print_full_width


def show_ranking(ranking: Mapping[str, Any]) -> None:
    """Show a row for each kind of block."""
    console.print(Text(f"One call of the model takes {ranking['total_ms']:.3f} ms."))
    table = Table(box=None, pad_edge=False)
    for column in ("block", "class", "times", "share", "above its bound", "can gain", "task"):
        table.add_column(column, justify="left" if column in ("block", "class", "task") else "right")
    for row in ranking["blocks"]:
        distance = "" if row["distance"] is None else f"{row['distance']:.1f}x"
        task = row.get("task") or row.get("fault", "")
        shares = (f"{row['share']:.0%}", distance, f"{row['gain']:.0%}")
        table.add_row(row["names"][0], row["class"], str(len(row["names"])), *shares, Text(task))
    print_full_width(table)
