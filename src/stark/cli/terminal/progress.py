"""Shows a run and its baselines while they are measured."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from stark.cli.terminal.screen import console, format_headline, format_name, format_verdict, show_warnings
from stark.core.records import Event, EventKind
from stark.core.steps import Step, Work
from stark.core.tree import ROOT_ID, Attempt, Node, Role
from stark_worker.protocol import report_text
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.report_text import strip_control_chars


class Progress:
    """Shows one line per event of a run."""

    def __init__(self) -> None:
        self._root_ms: float | None = None

    def __call__(self, event: Event) -> None:
        if event.kind is EventKind.LANDED and event.node is not None:
            if event.node.id == ROOT_ID:
                self._root_ms = event.node.runtime_ms
            self._show_line(
                f"{format_name(event.node.id):>5}  ",
                format_verdict(event.node, self._root_ms),
                format_headline(event.node),
            )
        elif event.kind is EventKind.BEGUN and event.node is not None:
            step = "repairs" if event.node.failed else "builds on"
            self._show_line(f"{format_name(event.number):>5}  ", Text(f"{step} {format_name(event.node.id)}", "dim"))
        elif event.kind is EventKind.ASKING or (event.kind is EventKind.EVALUATING and event.step is Step.EVALUATING):
            is_call = event.kind is EventKind.ASKING
            step = f"asks the {event.text} agent" if is_call else "is compiled, checked and timed"
            if event.work is not Work.FINAL:
                self._show_line(f"{format_name(event.number):>5}  ", Text(step, "dim"))
        elif event.kind is EventKind.CONFIRMING:
            step = "is confirmed: rebuilt with torch's own toolchain and measured again"
            self._show_line(f"{format_name(event.number):>5}  ", Text(step, "dim"))
        elif event.kind is EventKind.NOTE:
            self._show_line("", Text(strip_control_chars(event.text), "yellow"))

    def set_reference(self, nodes: Sequence[Node]) -> None:
        """Take the reference's time from a stored run."""
        self._root_ms = next((node.runtime_ms for node in nodes if node.id == ROOT_ID), None)

    def _show_line(self, *parts: str | Text) -> None:
        console.print(Text.assemble(*parts))


class BaselineProgress:
    """Shows each baseline, compared with the first."""

    def __init__(self) -> None:
        self._first_ms: float | None = None

    def __call__(self, name: str, report: EvalReport) -> None:
        if self._first_ms is None and report.timing is not None:
            self._first_ms = report.timing.median_ms
        node = Node(1, ROOT_ID, Attempt(Role.GIVEN, None, report))
        console.print(Text.assemble(f"{name:<28}", format_verdict(node, self._first_ms)))
        show_warnings(report_text.task_warnings(report) + report_text.timing_warnings(report))
