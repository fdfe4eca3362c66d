"""The terminal: shared output and formats. Code and logs are plain text, because rich markup would eat ``a[i]``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.measure import Measurement
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as Branches

from stark.cli.terminal.command import format_command
from stark.core.errors import StarkError
from stark.core.tree import ROOT_ID, Node, Role
from stark.progress.words import format_money as format_money
from stark.progress.words import format_name as format_name
from stark.report.table import Table as Figures
from stark_worker.protocol import report_text
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.report_text import strip_control_chars


class Screen(Console):
    """A console that goes on silently if its reader ends, as ``head`` does, so that the run goes on too."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


console = Screen(highlight=False, soft_wrap=True)
errors = Screen(stderr=True, highlight=False, soft_wrap=True)

MAX_CELL_CHARACTERS = 200  # in a table; its files hold the whole text
MAX_WIDTH = 2_000


def show_warnings(warnings: Sequence[str]) -> None:
    for warning in warnings:
        console.print(Text(warning, "yellow"))


def show_facts(report: EvalReport) -> None:
    """Show labels, checks and the level of isolation."""
    for name, text in report_text.report_facts(report):
        console.print(format_fact(name, text))


def format_fact(name: str, text: str) -> Text:
    return Text.assemble((f"{name:>16}  ", "dim"), text)


def print_full_width(shown: Branches | Table) -> None:
    """Print without cutting anything off, even if lines are longer than the terminal."""
    width = Measurement.get(console, console.options.update(max_width=MAX_WIDTH), shown).maximum
    Screen(highlight=False, width=max(width, console.width)).print(shown)


def show_settings(rows: Sequence[tuple[str, object, str]]) -> None:
    """Show every setting with its value and meaning."""
    for key, value, meaning in rows:
        shown = "(unset)" if value is None or value == "" else str(value)
        console.print(Text.assemble((key, "bold"), " = ", (shown, "cyan")))
        console.print(Text(f"    {meaning}", "dim"))


def show_tables(facts: Sequence[str], tables: Sequence[Figures]) -> None:
    """Show the facts and tables of a report."""
    for fact in facts:
        console.print(Text(fact))
    for table in tables:
        shown = Table(title=table.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for column, form in table.columns.items():
            shown.add_column(column, justify="left" if form == "text" else "right", no_wrap=True)
        for texts in table.texts():
            shown.add_row(*map(_format_cell, texts))
        console.print()
        print_full_width(shown)
        if table.note:
            console.print(Text(table.note, "dim"))


def _format_cell(text: str) -> Text:
    return Text(strip_control_chars(text if len(text) <= MAX_CELL_CHARACTERS else f"{text[:MAX_CELL_CHARACTERS]}…"))


def show_error(error: StarkError) -> None:
    """Show what happened and what to do next."""
    errors.print(Text.assemble(("error: ", "bold red"), strip_control_chars(error.message)))
    if error.next_step:
        errors.print(Text(error.next_step))


def show_bundle(file: Path, digest: str) -> None:
    """Show where the evidence is, its digest, and the command that checks it."""
    console.print(Text(f"The evidence is in {file}; the SHA-256 of its manifest is {digest}"))
    console.print(Text(f"To check it, type: {format_command('verify', file)}"))


def show_line(text: str) -> None:
    console.print(Text(strip_control_chars(text)))


def show_title(text: str) -> None:
    """Show the first line of a command, before anything is loaded."""
    console.print(Text(strip_control_chars(text), "bold"))


def show_json(content: object) -> None:
    console.out(json.dumps(content, ensure_ascii=False), highlight=False)


def format_verdict(node: Node, root_ms: float | None) -> Text:
    colour = "green" if node.report.outcome is Outcome.OK else "red"
    return Text(report_text.format_verdict(node.report, None if node.id == ROOT_ID else root_ms), colour)


def format_headline(node: Node) -> Text:
    """Return the first words of the plan."""
    if node.plan is None or node.role is Role.PLAN:
        return Text()
    first = next((line.strip("# *") for line in node.plan.advice.splitlines() if line.strip("# *")), "")
    short = first if len(first) <= 72 else first[:71] + "…"
    verb = "repair of: " if node.role is Role.DEBUG else ""
    return Text(strip_control_chars(f"  {verb}{short}"), "dim")


def format_ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} ms"


def format_limits(usd: float | None, tokens: int | None) -> str:
    """Return the limits as text. Pass no money if a price is not known: a limit on it would not hold."""
    money = "" if usd is None else f"${usd:,.2f}"
    counted = "" if tokens is None else f"{tokens:,} tokens"
    return " or ".join(filter(None, (money, counted)))


def format_title(text: str) -> Group:
    return Group(Text(), Text(text, "bold"))


def format_code(source: str, language: str = "python") -> Syntax:
    return Syntax(strip_control_chars(source.expandtabs(4)), language, background_color="default")
