"""What a person sees on the terminal. Code and logs are printed as plain text: rich markup would eat ``a[i]``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.measure import Measurement
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as Branches

from stark.core.errors import StarkError
from stark.core.tree import ROOT_ID, Node, Role
from stark.report.table import Table as Figures
from stark_worker.protocol import report_text
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.report_text import strip_control_chars

if TYPE_CHECKING:  # both pull in the agents, which `stark --help` need not wait for
    pass


class Screen(Console):
    """Whoever reads it may leave, as ``head`` does: then it goes on unseen, and so does the run it tells of."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


console = Screen(highlight=False, soft_wrap=True)


errors = Screen(stderr=True, highlight=False, soft_wrap=True)


LONGEST_CELL = 200  # of a table; its files have all of it


WIDEST = 2_000


def show_warnings(warnings: Sequence[str]) -> None:
    for warning in warnings:
        console.print(Text(warning, "yellow"))


def show_facts(report: EvalReport) -> None:
    """Labels and checks, the level of isolation among them."""
    for name, text in report_text.report_facts(report):
        console.print(format_fact(name, text))


def format_fact(name: str, text: str) -> Text:
    return Text.assemble((f"{name:>16}  ", "dim"), text)


def print_whole(shown: Branches | Table) -> None:
    """However wide it is: a line that is too long is better than a figure that is cut off."""
    width = Measurement.get(console, console.options.update(max_width=WIDEST), shown).maximum
    Screen(highlight=False, width=max(width, console.width)).print(shown)


def show_settings(rows: Sequence[tuple[str, object, str]]) -> None:
    """Every setting with its value and meaning."""
    for key, value, meaning in rows:
        shown = "(unset)" if value is None or value == "" else str(value)
        console.print(Text.assemble((key, "bold"), " = ", (shown, "cyan")))
        console.print(Text(f"    {meaning}", "dim"))


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
        print_whole(shown)
        if table.note:
            console.print(Text(table.note, "dim"))


def _cell(text: str) -> Text:
    return Text(strip_control_chars(text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"))


def show_error(error: StarkError) -> None:
    """One sentence on what happened, one on what to do."""
    errors.print(Text.assemble(("error: ", "bold red"), strip_control_chars(error.message)))
    if error.next_step:
        errors.print(Text(error.next_step))


def show_bundle(file: Path, digest: str) -> None:
    """Where the evidence is, what names it and who can check it."""
    console.print(Text(f"The evidence is in {file}; the SHA-256 of its manifest is {digest}"))
    console.print(Text(f"Anybody can check it: stark verify {file}"))


def say(text: str) -> None:
    """A line for the user."""
    console.print(Text(strip_control_chars(text)))


def format_verdict(node: Node, root_ms: float | None) -> Text:
    colour = "green" if node.report.outcome is Outcome.OK else "red"
    return Text(report_text.format_verdict(node.report, None if node.id == ROOT_ID else root_ms), colour)


def format_headline(node: Node) -> Text:
    """The first words of what was asked for."""
    if node.plan is None or node.role is Role.PLAN:
        return Text()
    first = next((line.strip("# *") for line in node.plan.advice.splitlines() if line.strip("# *")), "")
    short = first if len(first) <= 72 else first[:71] + "…"
    verb = "repair of: " if node.role is Role.DEBUG else ""
    return Text(strip_control_chars(f"  {verb}{short}"), "dim")


def format_name(number: int | None) -> str:
    return "root" if number == ROOT_ID else f"#{number}"


def format_ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} ms"


def format_money(usd: float | None) -> str:
    """US dollars, if the prices are known."""
    return "price not known" if usd is None else f"${usd:,.2f}"


def format_limits(usd: float | None, tokens: int | None) -> str:
    """What cannot be exceeded: no money where a price is not known, for a limit on it holds nothing back then."""
    money = "" if usd is None else f"${usd:,.2f}"
    counted = "" if tokens is None else f"{tokens:,} tokens"
    return " or ".join(filter(None, (money, counted)))


def format_title(text: str) -> Group:
    return Group(Text(), Text(text, "bold"))


def format_code(source: str, language: str = "python") -> Syntax:
    return Syntax(strip_control_chars(source.expandtabs(4)), language, background_color="default")
