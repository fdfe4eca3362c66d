"""TODO."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from stark.cli.terminal.command import command
from stark.core.records import Final
from stark.core.tree import ROOT_ID, Attempt, Node, Role
from stark.models.open import describe
from stark_worker.protocol import report_text
from stark_worker.protocol.codec import to_json
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.report_text import strip_control_chars
from stark_worker.protocol.request import Score

if TYPE_CHECKING:  # both pull in the agents, which `stark --help` need not wait for
    from stark.run.estimate import Estimate
    from stark.run.result import Result
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

# by what ended a run: what it takes to go on
MORE = {"attempts": " --attempts N", "tokens": " --tokens N", "money": " --usd N", "wall time": " --minutes N"}


def show_start(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Where a run is, what it works on and with what."""
    console.print(Text(title, "bold"))
    for name, value in rows:
        console.print(Text.assemble((f"{name:>11}  ", "dim"), value))
    console.print()


def show_result(
    result: Result, folder: Path, compiled: EvalReport | None, exported: Path | None, priced: bool = True
) -> None:
    """How a run ended and what to do with it. Where it is not ``priced``, what was asked has no known price."""
    console.print()
    console.print(_comparison(result, compiled))
    console.print()
    spent = f"{result.spent.tokens:,} tokens, {format_money(result.spent.usd if priced else None)}"
    console.print(Text(f"{result.attempts} attempts, {spent}. Ended by: {result.reason}."))
    if result.final is not None:
        show_final(result.final, format_name(result.final.node_id))
    if result.best is None:
        console.print(Text("No correct kernel was found.", "yellow"))
    elif (plan := result.best.plan) is not None:
        grounded = "passed" if plan.grounded else f"did not pass ({'; '.join(plan.violations) or 'no anchors'})"
        console.print(Text(f"The winner's scaffold {grounded} the anchor check."))
    if result.best is not None and not result.improved:
        console.print(Text("It is correct, but not faster than the reference beyond doubt.", "yellow"))
    if exported is not None:
        console.print(Text.assemble("The kernel:       ", (str(exported), "bold"), " (import ModelNew from it)"))
    console.print(Text(f"Look at the tree: {command('show', folder)}"))
    console.print(Text(f"Go on:            {command('resume', folder)}{MORE.get(result.reason, '')}"))


def show_first_steps() -> None:
    """What somebody who has seen the playbook at work may want next."""
    own = command("optimize", "YOUR_TASK.py")
    console.print(Text(f"Your own model:   {own}  (see examples/tasks for what a task is)"))
    console.print(Text("A real LLM:       --model anthropic:claude-sonnet-4-6, or --model NAME --base-url ADDRESS"))
    console.print(
        Text("A GPU:            --target triton, or --target cuda with a real LLM (the playbook writes no CUDA)")
    )


def _comparison(result: Result, compiled: EvalReport | None) -> Table:
    """Eager, torch.compile and ours, each of the others timed in turns with eager and compared with that.

    Minutes lie between, and machines change: eager beside one is not always as fast as beside the other.
    """
    final = result.final.report if result.final else None
    eager = final.opponent if final and final.opponent else result.root.report.timing
    ours = final.timing if final else result.best.report.timing if result.best else None
    table = Table(box=None, pad_edge=False)
    for column in ("", "time per call", "eager beside it", "speed"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("PyTorch eager", format_ms(eager.median_ms if eager else None), "", "1.00x")
    if compiled is not None and compiled.timing is None:
        table.add_row("torch.compile", f"cannot run here ({compiled.outcome.value.replace('_', ' ')})", "", "")
    compared = [("torch.compile", compiled.timing, compiled.opponent)] if compiled else []
    for name, timing, beside in (*compared, (_ours(result), ours, eager)):
        if timing and beside:
            speed = f"{beside.median_ms / timing.median_ms:.2f}x"
            table.add_row(name, format_ms(timing.median_ms), format_ms(beside.median_ms), speed)
    return table


def _ours(result: Result) -> str:
    return f"ours ({format_name(result.best.id)})" if result.best else "ours"


def show_final(final: Final, name: str) -> None:
    """What came out when the winner was built the stock way."""
    for score in Score:
        one = replace(final, score=score)
        if one.speedup_interval is None:
            verdict = "not confirmed: " + one.report.outcome.value.replace("_", " ") if not one.holds else "correct"
        else:
            low, high = one.speedup_interval
            verdict = f"correct, {low:.2f}x to {high:.2f}x as fast as the reference (99 % confidence)"
        console.print(Text(f"{name} built the stock way, score {score}: {verdict}."))
    if final.verified.labels is not None:
        console.print(Text(report_text.format_labels(final.verified.labels), "dim"))
    show_warnings(report_text.timing_warnings(final.verified, final.kernelbench))


def show_verdict(report: EvalReport, reference: EvalReport, as_json: bool) -> None:
    """What the evaluator found out about one candidate."""
    warnings = report_text.task_warnings(reference) + report_text.timing_warnings(reference, report)
    if as_json:
        console.out(_verdict_as_json(report, reference, warnings), highlight=False)
        return
    node = Node(1, ROOT_ID, Attempt(Role.GIVEN, None, report))
    root_ms = reference.timing.median_ms if reference.timing else None
    console.print(format_verdict(node, root_ms))
    show_warnings(warnings)
    for name, text in report_text.median_facts(report):
        console.print(format_fact(name, text))
    show_facts(report)
    if report.log:
        console.print(format_title("Log"), Text(strip_control_chars(report.log)))


def _verdict_as_json(report: EvalReport, reference: EvalReport, warnings: Sequence[str]) -> str:
    """The report, with what follows from it and from the reference's."""
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
    """What a run will probably cost."""
    table = Table(box=None, pad_edge=False)
    for column in ("role", "model", "calls", "tokens in", "tokens out", "money"):
        table.add_column(column, justify="left" if column in ("role", "model") else "right")
    for row in estimates:
        usage = row.usage
        tokens_in, tokens_out = f"{usage.input_tokens:,}", f"{usage.output_tokens:,}"
        table.add_row(row.role, describe(row.model), str(row.calls), tokens_in, tokens_out, format_money(row.usd))
    console.print(table)
    prices = [row.usd for row in estimates if row.usd is not None]
    priced = len(prices) == len(estimates)
    money = format_money(sum(prices) if priced else None)
    tokens = sum(row.usage.total for row in estimates)
    calls = sum(row.calls for row in estimates)
    console.print(Text(f"{attempts} attempts: about {calls} calls, {tokens:,} tokens, {money}."))
    cap = format_limits(limit_usd if priced else None, limit_tokens)
    console.print(Text(f"Whatever happens, the run stops before it has spent {cap}. Nothing was started."))
