"""Shows the start and the result of a run, a verdict, and an estimate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from stark.cli.terminal.command import format_command
from stark.cli.terminal.screen import (
    console,
    format_fact,
    format_limits,
    format_money,
    format_ms,
    format_name,
    format_title,
    format_verdict,
    show_facts,
    show_warnings,
)
from stark.core.records import EndReason, Final
from stark.core.tree import ROOT_ID, Attempt, Node, Role
from stark.models.open import describe_model
from stark_worker.protocol import report_text
from stark_worker.protocol.codec import to_json
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.report_text import strip_control_chars
from stark_worker.protocol.request import Score

if TYPE_CHECKING:  # at run time these load the agents, which would slow `stark --help` down
    from stark.run.estimate import Estimate
    from stark.run.result import Result

RAISED_LIMIT = {  # the option that lets a run continue after this ending
    EndReason.DONE: " --attempts N",
    EndReason.BOUND: " --stop-at-bound 0",
    EndReason.PLATEAU: " --stop-after 0",
    EndReason.TOKENS: " --tokens N",
    EndReason.MONEY: " --usd N",
    EndReason.WALL_TIME: " --minutes N",
}


def show_start(rows: Sequence[tuple[str, str]]) -> None:
    """Show what a run works on, with which model and limits, and where."""
    for name, value in rows:
        console.print(Text.assemble((f"{name:>11}  ", "dim"), strip_control_chars(value)))
    console.print()


def show_result(
    result: Result, folder: Path, compiled: EvalReport | None, exported: Path | None, priced: bool = True
) -> None:
    """Show how a run ended and what to do next. ``priced`` is False if a model has no known price."""
    console.print()
    console.print(_compare_times(result, compiled))
    console.print()
    spent = f"{result.spent.tokens:,} tokens, {format_money(result.spent.usd if priced else None)}"
    console.print(Text(f"{result.attempts} attempts, {spent}. Ended by: {result.reason}."))
    if result.final is not None:
        show_final(result.final, format_name(result.final.node_id))
    if result.best is None:
        console.print(Text("No correct kernel was found.", "yellow"))
    elif result.contradiction:
        console.print(Text(f"Cannot tell if the best kernel is faster: {result.contradiction}.", "bold yellow"))
        console.print(Text("Nothing was exported. Measure again on a quiet machine: resume the run, or stark judge."))
    elif not result.improved:
        console.print(Text("The best kernel is correct, but not surely faster than the reference.", "yellow"))
    if compiled is not None and is_slower_than(result, compiled):
        console.print(Text("torch.compile is faster than the best kernel: use torch.compile(model).", "bold yellow"))
    if exported is not None:
        console.print(
            Text.assemble("The kernel:       ", (str(exported), "bold"), " (ModelNew in it takes the place of Model)")
        )
    console.print(Text(f"Show the tree:    {format_command('show', folder)}"))
    console.print(Text(f"Continue:         {format_command('resume', folder)}{RAISED_LIMIT.get(result.reason, '')}"))


def is_faster_than(result: Result, compiled: EvalReport) -> bool:
    """True if the best kernel is surely faster than torch.compile. Both were timed in turns with eager."""
    mine, theirs = _final_interval(result), compiled.speedup_interval
    return mine is not None and (theirs is None or mine[0] > theirs[1])


def is_slower_than(result: Result, compiled: EvalReport) -> bool:
    """True if torch.compile is surely faster than the best kernel."""
    mine, theirs = _final_interval(result), compiled.speedup_interval
    return mine is not None and theirs is not None and theirs[0] > mine[1]


def _final_interval(result: Result) -> tuple[float, float] | None:
    return result.final.speedup_interval if result.final else None


def show_first_steps() -> None:
    """Show the next steps after a run with the playbook."""
    own = format_command("optimize", "YOUR_TASK.py")
    console.print(Text(f"Your own model:   {own}  (see examples/tasks for what a task is)"))
    console.print(Text("A real LLM:       --model anthropic:claude-sonnet-4-6, or --model NAME --base-url ADDRESS"))
    console.print(
        Text("A GPU:            --target triton, or --target cuda with a real LLM (the playbook writes no CUDA)")
    )


def _compare_times(result: Result, compiled: EvalReport | None) -> Table:
    """Return a table of eager, torch.compile and STARK.

    Each is compared with eager in the same turns, because a machine's speed changes within minutes.
    """
    final = result.final.report if result.final else None
    eager = final.opponent if final and final.opponent else result.root.report.timing
    best = final.timing if final else result.best.report.timing if result.best else None
    table = Table(box=None, pad_edge=False)
    for column in ("", "time per call", "eager (same turns)", "speed"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("PyTorch eager", format_ms(eager.median_ms if eager else None), "", "1.00x")
    if compiled is not None and compiled.timing is None:
        table.add_row("torch.compile", f"cannot run here ({compiled.outcome.value.replace('_', ' ')})", "", "")
    compared = [("torch.compile", compiled.timing, compiled.opponent)] if compiled else []
    stark = f"STARK ({format_name(result.best.id)})" if result.best else "STARK"
    drop_in = result.final.drop_in.report if result.final and result.final.drop_in else None
    exported = [("  as a drop-in", drop_in.timing, drop_in.opponent)] if drop_in else []
    for name, timing, same_turns in (*compared, (stark, best, eager), *exported):
        if timing and same_turns:
            speed = f"{same_turns.median_ms / timing.median_ms:.2f}x"
            table.add_row(name, format_ms(timing.median_ms), format_ms(same_turns.median_ms), speed)
    return table


def show_final(final: Final, name: str) -> None:
    """Show the result of a final check."""
    for score in Score:
        one = replace(final, score=score)
        if one.speedup_interval is None:
            verdict = "not confirmed: " + one.report.outcome.value.replace("_", " ") if not one.holds else "correct"
        else:
            low, high = one.speedup_interval
            verdict = f"correct, {low:.2f}x to {high:.2f}x as fast as the reference (99 % confidence)"
        console.print(Text(f"{name} built with torch's own toolchain, score {score}: {verdict}."))
    if final.verified.labels is not None:
        console.print(Text(report_text.format_labels(final.verified.labels), "dim"))
    show_warnings(report_text.timing_warnings(final.verified, final.kernelbench))


def show_verdict(report: EvalReport, reference: EvalReport, as_json: bool) -> None:
    """Show the report on one candidate."""
    warnings = report_text.task_warnings(reference) + report_text.timing_warnings(reference, report)
    if as_json:
        console.out(_format_json(report, reference, warnings), highlight=False)
        return
    node = Node(1, ROOT_ID, Attempt(Role.GIVEN, None, report))
    root_ms = reference.timing.median_ms if reference.timing else None
    console.print(Text("correct, " if report.timing else ""), format_verdict(node, root_ms), sep="")
    if root_ms is not None:
        console.print(format_fact("reference", format_ms(root_ms)))
    show_warnings(warnings)
    for name, text in report_text.median_facts(report):
        console.print(format_fact(name, text))
    show_facts(report)
    if report.log:
        console.print(format_title("Log"), Text(strip_control_chars(report.log)))


def _format_json(report: EvalReport, reference: EvalReport, warnings: Sequence[str]) -> str:
    """Return the report as JSON, with medians, intervals and warnings."""
    timing = report.timing
    more = {
        "median_ms": timing.median_ms if timing else None,
        "mean_ms": timing.mean_ms if timing else None,
        "interval_ms": timing.interval_ms if timing else None,
        "reference_median_ms": reference.timing.median_ms if reference.timing else None,
        "degenerate": reference.degenerate,
        "warnings": list(warnings),
    }
    return json.dumps(json.loads(to_json(report)) | more, ensure_ascii=False)


def show_estimate(estimates: Sequence[Estimate], attempts: int, limit_usd: float, limit_tokens: int | None) -> None:
    """Show the expected cost of a run."""
    table = Table(box=None, pad_edge=False)
    for column in ("role", "model", "calls", "tokens in", "tokens out", "money"):
        table.add_column(column, justify="left" if column in ("role", "model") else "right")
    for row in estimates:
        usage = row.usage
        tokens_in, tokens_out = f"{usage.input_tokens:,}", f"{usage.output_tokens:,}"
        table.add_row(row.role, describe_model(row.model), str(row.calls), tokens_in, tokens_out, format_money(row.usd))
    console.print(table)
    prices = [row.usd for row in estimates if row.usd is not None]
    priced = len(prices) == len(estimates)
    money = format_money(sum(prices) if priced else None)
    tokens = sum(row.usage.total for row in estimates)
    calls = sum(row.calls for row in estimates)
    console.print(Text(f"{attempts} attempts: about {calls} calls, {tokens:,} tokens, {money}."))
    cap = format_limits(limit_usd if priced else None, limit_tokens)
    console.print(Text(f"The run stops before it has spent {cap}. Nothing was started."))
