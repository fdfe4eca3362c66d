"""Shows a benchmark: its forecast, its progress and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from stark.cli.terminal.command import format_command
from stark.cli.terminal.screen import console, format_limits, format_money
from stark.core.records import Ending, EndReason, Kind
from stark.progress.words import format_left
from stark_worker.protocol.report_text import strip_control_chars

if TYPE_CHECKING:  # at run time these load the agents, which would slow `stark --help` down
    from stark.bench.cell import Cell
    from stark.bench.forecast import Forecast
    from stark.bench.progress import BenchProgress


def show_tasks(cells: Sequence[Cell]) -> None:
    """List every task once, with the number of runs."""
    names = list(dict.fromkeys(cell.task.name for cell in cells))
    for name in names:
        console.print(Text(f"  {name}"))
    searches = sum(cell.kind is Kind.SEARCH for cell in cells)
    console.print(Text(f"{len(names)} tasks, {searches} searches, {len(cells) - searches} other measurements."))


def show_forecast(forecast: Forecast, parallel_runs: int) -> None:
    """Show the expected cost of a benchmark."""
    pace = forecast.pace
    usage, models = forecast.usage, " and ".join(forecast.models) or "no model"
    money = "price not known" if forecast.usd is None else f"${forecast.usd:,.2f}"
    console.print(
        Text(
            f"{forecast.attempts:,} attempts by {models}: about {forecast.calls:,} calls, {usage.input_tokens:,} "
            f"tokens in, {usage.output_tokens:,} out, {money}; about {forecast.hours:.1f} hours on one device with "
            f"{parallel_runs} runs in parallel."
        )
    )
    console.print(
        Text(
            f"Assumed: {pace.call:.0f} s for a call, {pace.evaluation:.0f} s for an evaluation, {pace.compiled:.0f} s "
            f"for torch.compile and {pace.tuned:.0f} s for max-autotune (small models; large ones take minutes), "
            f"{pace.final:.0f} s for the final check of a search and {pace.stock_build:.0f} s to build its winner with "
            "torch's own toolchain. The estimate ignores what the store already holds."
        )
    )
    console.print(Text(f"{_format_most(forecast)} Nothing was started."))


def _format_most(forecast: Forecast) -> str:
    """Return the limit on all runs together."""
    cap = format_limits(None if forecast.usd is None else forecast.most_usd, forecast.most_tokens)
    if cap:
        return f"All runs together stop before they have spent {cap}."
    return "Without a known price no limit on money holds: the runs need --tokens to start."


class GridProgress:
    """Shows one line per ended run: its ending, the progress and an estimate of what is left."""

    def __init__(self, show: Callable[[Text], None]) -> None:
        self._show = show
        self.endings: Counter[EndReason] = Counter()

    def __call__(self, cell: Cell, ending: Ending, progress: BenchProgress) -> None:
        self.endings[ending.reason] += 1
        money = "" if progress.usd_left is None else f", ${progress.usd_left:,.2f} to spend"
        how = Text(ending.reason.meaning, "green" if ending.reason == EndReason.DONE else "yellow")
        facts = f"{progress.made}/{progress.attempts} attempts, {format_money(progress.usd)}"
        left = format_left(progress.seconds_left) if progress.ended < progress.cells else "nothing left"
        self._show(
            Text.assemble(
                (f"{progress.ended}/{progress.cells} ", "bold"),
                strip_control_chars(f"{cell.id}: "),
                how,
                (f"  [{facts}; {left}{money}]", "dim"),
            )
        )
        if ending.message:
            self._show(Text(strip_control_chars(f"    {ending.message}"), "yellow"))


def show_endings(progress: GridProgress, folder: Path) -> None:
    """Show the endings of a session, and the next command."""
    if progress.endings:
        table = Table("this session", "runs", box=None, pad_edge=False)
        for reason, count in sorted(progress.endings.items()):
            table.add_row(reason.meaning, str(count))
        console.print(table)
    else:
        console.print(Text("Nothing was left to do."))
    console.print(Text(f"Read the results: {format_command('report', folder)}"))
