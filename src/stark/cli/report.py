"""The commands ``stark report`` and ``stark compare``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from stark.cli.terminal import screen
from stark.core.errors import UsageError


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The store of a benchmark, or a run folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Also write the report into this folder.")
    ] = None,
    table: Annotated[list[str] | None, typer.Option("--table", help="Show only this table; may be repeated.")] = None,
    eval_results: Annotated[
        Path | None, typer.Option("--eval-results", metavar="DIR", help="Write KernelBench's eval_results.json files.")
    ] = None,
) -> None:
    """Show what was found, task by task; then the paper's tables, next to the paper's own numbers."""
    from stark.analysis.groups import group_runs
    from stark.analysis.results import read_results
    from stark.page.collection import collect
    from stark.report.files import Findings, write_report
    from stark.report.header import header_facts
    from stark.report.kernelbench import runs_scored_by_mean, write_eval_results
    from stark.report.paper_tables import filled_tables
    from stark.report.tasks.findings import describe_findings, find_tasks, tasks_table
    from stark.report.tasks.sections import anchors, format_sections
    from stark.store.lookup import load_timings
    from stark.store.open import open_store

    results = read_results(folder)
    by_task = find_tasks(results)
    sentences, overview = describe_findings(by_task), tasks_table(by_task)
    found, facts = filled_tables(results), header_facts(results)
    names = [overview.name, *(each.name for each in found)]
    if unknown := set(table or []) - set(names):
        raise UsageError(f"This report has no table {sorted(unknown)[0]!r}.", f"It has: {', '.join(names)}.")
    if not table or overview.name in table:
        screen.show_tables(sentences, [overview])
        screen.show_line("")
    screen.show_tables(facts, [each for each in found if (each.name in table if table else not each.is_listing)])
    if out is not None:
        with closing(open_store(folder, write=False)) as store:
            runs = collect(store, folder.name)
        details = Findings(sentences, overview, anchors(by_task), format_sections(folder, by_task), runs)
        missing = write_report(out, f"STARK: {folder.name}", facts, found, group_runs(results), details)
        screen.show_line(f"The report is in {out / 'report.html'}. {missing}".rstrip())
    if eval_results is not None:
        timings = load_timings(folder, runs_scored_by_mean(results))
        count = len(write_eval_results(eval_results, results, timings))
        screen.show_line(
            f"Wrote {count} files eval_results.json into {eval_results}. They leave out tasks without a level."
        )


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A store or run folder.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one, on the same tasks.")],
    any_score: Annotated[bool, typer.Option("--any-score", help="Allow two different scores.")] = False,
) -> None:
    """Compare two stores task by task and method by method, with the probability that a difference is chance."""
    from stark.analysis.comparison import compare as compare_results
    from stark.analysis.results import read_results
    from stark.report.comparison_tables import comparison_tables, describe_store
    from stark.report.header import describe_timing

    one, other = read_results(first), read_results(second)
    found = compare_results(one, other, any_score)
    facts = [
        f"{describe_store(name, folder, results)} {describe_timing(results)}"
        for name, folder, results in (("A", first, one), ("B", second, other))
    ]
    facts += [f"Warning: {warning}" for warning in found.warnings]
    screen.show_tables(facts, comparison_tables(found))
