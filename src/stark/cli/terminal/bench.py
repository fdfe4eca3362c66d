"""What a person sees of a benchmark while it goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from stark.cli.terminal.screen import console, format_limits, format_money
from stark.core.records import Ending, EndReason, Kind
from stark_worker.protocol.report_text import strip_control_chars

if TYPE_CHECKING:  # both pull in the agents, which `stark --help` need not wait for
    from stark.bench.cell import Cell
    from stark.bench.forecast import Forecast
    from stark.bench.runner import BenchProgress


def show_tasks(cells: Sequence[Cell]) -> None:
    """Every task once."""
    names = list(dict.fromkeys(cell.task.name for cell in cells))
    for name in names:
        console.print(Text(f"  {name}"))
    searches = sum(cell.kind is Kind.SEARCH for cell in cells)
    console.print(Text(f"{len(names)} tasks, {searches} searches, {len(cells) - searches} other measurements."))


def show_forecast(forecast: Forecast, parallel_runs: int) -> None:
    """What a benchmark will probably take."""
    pace = forecast.pace
    usage, models = forecast.usage, " and ".join(forecast.models) or "nobody"
    money = "at a price that is not known" if forecast.usd is None else f"${forecast.usd:,.2f}"
    console.print(
        Text(
            f"{forecast.attempts:,} attempts by {models}: about {forecast.calls:,} calls, {usage.input_tokens:,} "
            f"tokens in, {usage.output_tokens:,} out, {money}; about {forecast.hours:.1f} hours on one lane with "
            f"{parallel_runs} runs at once."
        )
    )
    console.print(
        Text(
            f"Assumed: {pace.call:.0f} s for a call, {pace.evaluation:.0f} s for an evaluation, {pace.compiled:.0f} s "
            f"for torch.compile and {pace.tuned:.0f} s for max-autotune (small models; large ones take minutes), "
            f"{pace.final:.0f} s for the final of a search and {pace.stock_build:.0f} s to build its winner as torch "
            "does. What the store already holds is not taken off."
        )
    )
    console.print(Text(f"{_most(forecast)} Nothing was started."))


def _most(forecast: Forecast) -> str:
    """What the runs cannot exceed together."""
    cap = format_limits(None if forecast.usd is None else forecast.most_usd, forecast.most_tokens)
    if cap:
        return f"The runs stop before they have spent {cap} together."
    return "Without a price no limit on money holds: the runs need --tokens to start."


class GridProgress:
    """One line per run that ended: what became of it, how far the benchmark is, what is left."""

    def __init__(self) -> None:
        self.endings: Counter[EndReason] = Counter()

    def __call__(self, cell: Cell, ending: Ending, standing: BenchProgress) -> None:
        self.endings[ending.reason] += 1
        left = ""
        if standing.seconds_left is not None:
            money = "" if standing.usd_left is None else f" and ${standing.usd_left:,.2f}"
            left = f"; about {standing.seconds_left / 3600:.1f} h{money} left"
        how = Text(ending.reason.meaning, "green" if ending.reason == EndReason.DONE else "yellow")
        console.print(
            Text.assemble(
                (f"{standing.ended}/{standing.cells} ", "bold"),
                f"{cell.id}: ",
                how,
                (f"  [{standing.made}/{standing.attempts} attempts, {format_money(standing.usd)}{left}]", "dim"),
            )
        )
        if ending.message:
            console.print(Text(strip_control_chars(f"    {ending.message}"), "yellow"))


def show_endings(progress: GridProgress, folder: Path) -> None:
    """How a session ended, and what to do next."""
    if progress.endings:
        table = Table("this session", "runs", box=None, pad_edge=False)
        for reason, count in sorted(progress.endings.items()):
            table.add_row(reason.meaning, str(count))
        console.print(table)
    else:
        console.print(Text("Everything was done before."))
    console.print(Text(f"Read it: stark report {folder}"))
