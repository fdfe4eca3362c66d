"""TODO."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stark.cli.terminal import screen
from stark.core.errors import UsageError

if TYPE_CHECKING:
    pass


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The store of a benchmark, or a run folder.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Also write files into this folder.")] = None,
    table: Annotated[list[str] | None, typer.Option("--table", help="Show only this one; may be repeated.")] = None,
    eval_results: Annotated[
        Path | None, typer.Option("--eval-results", metavar="DIR", help="Write KernelBench's eval_results.json files.")
    ] = None,
) -> None:
    """Show the paper's tables and figures for a store, with the paper's own figures beside them."""
    from stark.analysis.groups import group
    from stark.analysis.results import read_results
    from stark.report.files import write_report
    from stark.report.header import facts_of
    from stark.report.kernelbench import told_as_mean, write_eval_results
    from stark.report.paper_tables import tables
    from stark.store.lookup import stored_timings

    results = read_results(folder)
    found, facts = tables(results), facts_of(results)
    names = [each.name for each in found]
    if unknown := set(table or []) - set(names):
        raise UsageError(f"This report has no table {sorted(unknown)[0]!r}.", f"It has: {', '.join(names)}.")
    screen.show_tables(facts, [each for each in found if (each.name in table if table else not each.listing)])
    if out is not None:
        missing = write_report(out, f"STARK: {folder.name}", facts, found, group(results))
        screen.say(f"The report is in {out / 'report.html'}. {missing}".rstrip())
    if eval_results is not None:
        timings = stored_timings(folder, told_as_mean(results))
        count = len(write_eval_results(eval_results, results, timings))
        screen.say(f"{count} files eval_results.json are in {eval_results}; tasks without a level are in none.")


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A store or run folder.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one, on the same tasks.")],
    any_score: Annotated[
        bool, typer.Option("--any-score", help="Also where the two were judged by other scores.")
    ] = False,
) -> None:
    """Say whether B is faster than A or solves more: task by task, and by method with how likely it is chance."""
    from stark.analysis.comparison import compare as compare_results
    from stark.analysis.results import read_results
    from stark.report.comparison_tables import comparison_tables, conditions
    from stark.report.header import timing_of

    one, other = read_results(first), read_results(second)
    found = compare_results(one, other, any_score)
    facts = [
        f"{conditions(name, folder, results)} {timing_of(results)}"
        for name, folder, results in (("A", first, one), ("B", second, other))
    ]
    facts += [f"Warning: {warning}" for warning in found.warnings]
    screen.show_tables(facts, comparison_tables(found))


COMMANDS = (report, compare)
