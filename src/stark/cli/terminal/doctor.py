"""Shows the findings of ``stark doctor``, as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json
from types import TracebackType
from typing import Self

from rich.table import Table
from rich.text import Text

from stark.cli.terminal.screen import console, errors
from stark_worker.protocol.findings import Finding, State, can_work

STYLES = {State.OK: "green", State.MISSING: "bold red", State.NOT_NEEDED: "dim"}


class Examination:
    """Shows the current step, and all findings at the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._found: list[Finding] = []
        self._status = errors.status("trying ...")

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._status.stop()
        if error is None:
            self._show()

    def begin(self, name: str) -> None:
        """Show the step that begins."""
        self._status.update(f"trying {name} ...")

    def add(self, finding: Finding) -> Finding:
        self._found.append(finding)
        return finding

    def _show(self) -> None:
        works = can_work(self._found)
        if self._as_json:
            content = {"works": works, "findings": [dataclasses.asdict(finding) for finding in self._found]}
            console.out(json.dumps(content, indent=1), highlight=False)
            return
        table = Table(box=None, pad_edge=False)
        for column in ("tried", "", "found"):
            table.add_column(column, overflow="fold")
        for each in self._found:
            fix = Text(f"\nfix: {each.fix}" if each.fix else "", "yellow" if each.state is State.MISSING else "dim")
            table.add_row(Text(each.name), Text(each.state, STYLES[each.state]), Text.assemble(each.detail, fix))
        console.print(table)
        console.print(Text("A run can work here." if works else "A run cannot work here yet. Follow the fixes above."))
