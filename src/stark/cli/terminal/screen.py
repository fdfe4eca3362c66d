"""What a person sees on the terminal. Code and logs are printed as plain text: rich markup would eat ``a[i]``."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.measure import Measurement
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as Branches

from stark.errors import StarkError
from stark.finals import winner
from stark.interfaces import Call, Event, Final, RunRecord
from stark.models import describe
from stark.tree import ROOT_ID, Node, Role, Tree
from stark.view.calling import command
from stark.view.tables import Table as Figures
from stark_worker import words
from stark_worker.protocol import DEGENERATE, EvalReport, Outcome, Score, to_json
from stark_worker.words import plainly

if TYPE_CHECKING:  # both pull in the agents, which `stark --help` need not wait for
    from stark.estimate import Estimate
    from stark.run import Result


class Screen(Console):
    """Whoever reads it may leave, as ``head`` does: then it goes on unseen, and so does the run it tells of."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


console = Screen(highlight=False, soft_wrap=True)
errors = Screen(stderr=True, highlight=False, soft_wrap=True)

DEEPEST_DRAWN = 10
LONGEST_CELL = 200  # of a table; its files have all of it
WIDEST = 2_000

# by what ended a run: what it takes to go on
MORE = {"attempts": " --attempts N", "tokens": " --tokens N", "money": " --usd N", "wall time": " --minutes N"}


class Progress:
    """Tells a run as it happens, one line per event."""

    def __init__(self) -> None:
        self._root_ms: float | None = None

    def __call__(self, event: Event) -> None:
        if event.kind == "landed" and event.node is not None:
            if event.node.id == ROOT_ID:
                self._root_ms = event.node.runtime_ms
            self._line(f"{_name(event.node.id):>5}  ", _verdict(event.node, self._root_ms), _headline(event.node))
        elif event.kind == "begun" and event.node is not None:
            doing = "repairs" if event.node.failed else "builds on"
            self._line(f"{_name(event.number):>5}  ", Text(f"{doing} {_name(event.node.id)}", "dim"))
        elif event.kind in ("asking", "evaluating"):
            what = f"asks the {event.text} agent" if event.kind == "asking" else "is compiled, checked and timed"
            self._line(f"{_name(event.number):>5}  ", Text(what, "dim"))
        elif event.kind == "note":
            self._line("", Text(plainly(event.text), "yellow"))

    def learn(self, nodes: Sequence[Node]) -> None:
        """Take the reference's time from a stored run."""
        self._root_ms = next((node.runtime_ms for node in nodes if node.id == ROOT_ID), None)

    def _line(self, *parts: str | Text) -> None:
        console.print(Text.assemble(*parts))


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
    spent = f"{result.spent.tokens:,} tokens, {money_in_words(result.spent.usd if priced else None)}"
    console.print(Text(f"{result.attempts} attempts, {spent}. Ended by: {result.reason}."))
    if result.final is not None:
        show_final(result.final, _name(result.final.node_id))
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
    eager = final.rival if final and final.rival else result.root.report.timing
    ours = final.timing if final else result.best.report.timing if result.best else None
    table = Table(box=None, pad_edge=False)
    for column in ("", "time per call", "eager beside it", "speed"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("PyTorch eager", _ms(eager.median_ms if eager else None), "", "1.00x")
    if compiled is not None and compiled.timing is None:
        table.add_row("torch.compile", f"cannot run here ({compiled.outcome.value.replace('_', ' ')})", "", "")
    compared = [("torch.compile", compiled.timing, compiled.rival)] if compiled else []
    for name, timing, beside in (*compared, (_ours(result), ours, eager)):
        if timing and beside:
            speed = f"{beside.median_ms / timing.median_ms:.2f}x"
            table.add_row(name, _ms(timing.median_ms), _ms(beside.median_ms), speed)
    return table


def _ours(result: Result) -> str:
    return f"ours ({_name(result.best.id)})" if result.best else "ours"


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
        console.print(Text(words.sentence(final.verified.labels), "dim"))
    _warn(words.doubts(final.verified, final.kernelbench))


class Baselines:
    """Tells each baseline as it is measured, compared with the first."""

    def __init__(self) -> None:
        self._first_ms: float | None = None

    def __call__(self, name: str, report: EvalReport) -> None:
        if self._first_ms is None and report.timing is not None:
            self._first_ms = report.timing.median_ms
        console.print(
            Text.assemble(f"{name:<28}", _verdict(Node(1, ROOT_ID, Role.GIVEN, None, report), self._first_ms))
        )
        _warn(words.warnings(report) + words.doubts(report))


def show_verdict(report: EvalReport, reference: EvalReport, as_json: bool) -> None:
    """What the evaluator found out about one candidate."""
    warnings = words.warnings(reference) + words.doubts(reference, report)
    if as_json:
        console.out(_verdict_as_json(report, reference, warnings), highlight=False)
        return
    node = Node(1, ROOT_ID, Role.GIVEN, None, report)
    root_ms = reference.timing.median_ms if reference.timing else None
    console.print(_verdict(node, root_ms))
    _warn(warnings)
    for name, text in words.median(report):
        console.print(_fact(name, text))
    _show_facts(report)
    if report.log:
        console.print(_title("Log"), Text(plainly(report.log)))


def _verdict_as_json(report: EvalReport, reference: EvalReport, warnings: Sequence[str]) -> str:
    """The report, with what follows from it and from the reference's."""
    timing = report.timing
    more = {
        "median_ms": timing.median_ms if timing else None,
        "mean_ms": timing.mean_ms if timing else None,
        "interval_ms": timing.interval_ms if timing else None,
        "reference_median_ms": reference.timing.median_ms if reference.timing else None,
        DEGENERATE: reference.checks.get(DEGENERATE),
        "warnings": list(warnings),
    }
    return json.dumps(json.loads(to_json(report)) | more, ensure_ascii=False)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        console.print(Text(warning, "yellow"))


def _show_facts(report: EvalReport) -> None:
    """Labels and checks, the level of isolation among them."""
    for name, text in words.facts(report):
        console.print(_fact(name, text))


def _fact(name: str, text: str) -> Text:
    return Text.assemble((f"{name:>16}  ", "dim"), text)


def show_tree(record: RunRecord, nodes: Sequence[Node], models: Sequence[str] = (), final: Final | None = None) -> None:
    """The whole tree, one line per node, who was asked, and what became of the winner."""
    tree = Tree(nodes)
    if not tree:
        console.print(Text("The run has no node yet."))
        return
    level = tree.root.report.sandbox
    facts = [record.settings["method"], *map(describe, models), record.device.name]
    facts += [f"{level} sandbox"] if level else []
    console.print(Text.assemble((record.task.name, "bold"), f"  {', '.join(facts)}"))
    _draw(tree, winner(tree, final))
    if final is not None:
        show_final(final, _name(final.node_id))


def _draw(tree: Tree, best: Node | None) -> None:
    def label(node: Node) -> Text:
        mark = Text("  ★ best", "bold green") if best and node.id == best.id else Text()
        name = "root" if node.id == ROOT_ID else f"{_name(node.id)} {node.role}"
        return Text.assemble(f"{name}  ", _verdict(node, tree.root.runtime_ms), mark, _headline(node))

    below = [(node, node.parent_id) for node in tree if node.parent_id is not None]
    depth = {ROOT_ID: 0}
    for node, parent in below:
        depth[node.id] = depth[parent] + 1
    if max(depth.values()) > DEEPEST_DRAWN:  # indented so far, the labels would be cut off
        console.print(label(tree.root))
        for node, parent in below:
            console.print(Text.assemble((f"{_name(parent)} -> ", "dim"), label(node)))
        return
    branches = {ROOT_ID: Branches(label(tree.root), guide_style="dim")}
    for node, parent in below:
        branches[node.id] = branches[parent].add(label(node))
    if console.is_terminal:
        console.print(branches[ROOT_ID])
    else:
        _print_whole(branches[ROOT_ID])


def _print_whole(shown: Branches | Table) -> None:
    """However wide it is: a line that is too long is better than a figure that is cut off."""
    width = Measurement.get(console, console.options.update(max_width=WIDEST), shown).maximum
    Screen(highlight=False, width=max(width, console.width)).print(shown)


def show_node(node: Node, parent: Node | None, calls: Sequence[Call]) -> None:
    """One node: what was asked, what came back, what it changed, how it did."""
    console.print(_title(f"Node {node.id} by {node.role}" + (f", child of {parent.id}" if parent else "")))
    console.print(_verdict(node, None))
    for note in node.notes:
        console.print(Text(plainly(f"note: {note}"), "yellow"))
    if node.same_as is not None:
        console.print(Text(f"Same source as node {node.same_as}; its report was taken over."))
    _show_facts(node.report)
    for call in calls:
        _show_call(call)
    if node.plan is not None:
        grounded = "grounded" if node.plan.grounded else f"not grounded: {'; '.join(node.plan.violations)}"
        console.print(_title(f"Plan ({grounded})"), Text(plainly(node.plan.advice)))
        if node.plan.scaffold:
            console.print(_title("Scaffold"), _code(node.plan.scaffold))
    if node.source is not None:
        before = (parent.source or "") if parent else ""
        changed = difflib.unified_diff(before.splitlines(), node.source.splitlines(), "parent", "this", lineterm="")
        console.print(_title("Change"), _code("\n".join(changed), "diff"))
        if node.outside_share is not None:
            console.print(Text(f"{node.outside_share:.0%} of the change lies outside the anchors."))
    if node.report.log:
        console.print(_title("Log"), Text(plainly(node.report.log)))


def show_settings(rows: Sequence[tuple[str, object, str]]) -> None:
    """Every setting with its value and meaning."""
    for key, value, meaning in rows:
        shown = "(unset)" if value is None or value == "" else str(value)
        console.print(Text.assemble((key, "bold"), " = ", (shown, "cyan")))
        console.print(Text(f"    {meaning}", "dim"))


def show_estimate(estimates: Sequence[Estimate], attempts: int, limit_usd: float, limit_tokens: int | None) -> None:
    """What a run will probably cost."""
    table = Table(box=None, pad_edge=False)
    for column in ("role", "model", "calls", "tokens in", "tokens out", "money"):
        table.add_column(column, justify="left" if column in ("role", "model") else "right")
    for row in estimates:
        usage = row.usage
        tokens_in, tokens_out = f"{usage.input_tokens:,}", f"{usage.output_tokens:,}"
        table.add_row(row.role, describe(row.model), str(row.calls), tokens_in, tokens_out, money_in_words(row.usd))
    console.print(table)
    prices = [row.usd for row in estimates if row.usd is not None]
    priced = len(prices) == len(estimates)
    money = money_in_words(sum(prices) if priced else None)
    tokens = sum(row.usage.total for row in estimates)
    calls = sum(row.calls for row in estimates)
    console.print(Text(f"{attempts} attempts: about {calls} calls, {tokens:,} tokens, {money}."))
    cap = limits_in_words(limit_usd if priced else None, limit_tokens)
    console.print(Text(f"Whatever happens, the run stops before it has spent {cap}. Nothing was started."))


def show_tables(facts: Sequence[str], tables: Sequence[Figures]) -> None:
    """A report."""
    for fact in facts:
        console.print(Text(fact))
    for table in tables:
        shown = Table(title=table.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for column, form in table.columns.items():
            shown.add_column(column, justify="left" if form == "text" else "right", no_wrap=True)
        for texts in table.texts():
            shown.add_row(*map(_cell, texts))
        console.print()
        _print_whole(shown)
        if table.note:
            console.print(Text(table.note, "dim"))


def _cell(text: str) -> Text:
    return Text(plainly(text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"))


def show_error(error: StarkError) -> None:
    """One sentence on what happened, one on what to do."""
    errors.print(Text.assemble(("error: ", "bold red"), plainly(error.message)))
    if error.next_step:
        errors.print(Text(error.next_step))


def show_bundle(file: Path, digest: str) -> None:
    """Where the evidence is, what names it and who can check it."""
    console.print(Text(f"The evidence is in {file}; the SHA-256 of its manifest is {digest}"))
    console.print(Text(f"Anybody can check it: stark verify {file}"))


def say(text: str) -> None:
    """A line for the user."""
    console.print(Text(plainly(text)))


def _show_call(call: Call) -> None:
    usage, cost = call.reply.usage, call.reply.cost_usd
    price = "price not known" if cost is None else f"${cost:.4f}"
    window = ", ".join(map(str, call.window))
    console.print(
        _title(f"Call {call.index}: {call.role} agent, {describe(call.model)}"),
        Text(
            f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out, {price}, "
            f"{call.duration_s:.1f} s; window: {window}",
            "dim",
        ),
    )
    for message in call.messages:
        console.print(Text(f"[{message.role}]", "bold dim"), Text(plainly(message.content), "dim"))
    said = "\n".join(part for part in (call.reply.text, call.reply.arguments) if part)
    console.print(Text("[reply]", "bold"), Text(plainly(said) or "(empty)"))


def _verdict(node: Node, root_ms: float | None) -> Text:
    colour = "green" if node.report.outcome is Outcome.OK else "red"
    return Text(words.verdict(node.report, None if node.id == ROOT_ID else root_ms), colour)


def _headline(node: Node) -> Text:
    """The first words of what was asked for."""
    if node.plan is None or node.role is Role.PLAN:
        return Text()
    first = next((line.strip("# *") for line in node.plan.advice.splitlines() if line.strip("# *")), "")
    short = first if len(first) <= 72 else first[:71] + "…"
    verb = "repair of: " if node.role is Role.DEBUG else ""
    return Text(plainly(f"  {verb}{short}"), "dim")


def _name(number: int | None) -> str:
    return "root" if number == ROOT_ID else f"#{number}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} ms"


def money_in_words(usd: float | None) -> str:
    """US dollars, if the prices are known."""
    return "price not known" if usd is None else f"${usd:,.2f}"


def limits_in_words(usd: float | None, tokens: int | None) -> str:
    """What cannot be exceeded: no money where a price is not known, for a limit on it holds nothing back then."""
    money = "" if usd is None else f"${usd:,.2f}"
    counted = "" if tokens is None else f"{tokens:,} tokens"
    return " or ".join(filter(None, (money, counted)))


def _title(text: str) -> Group:
    return Group(Text(), Text(text, "bold"))


def _code(source: str, language: str = "python") -> Syntax:
    return Syntax(plainly(source.expandtabs(4)), language, background_color="default")
