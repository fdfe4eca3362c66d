"""Shows a run of the Python API while it works: lines in a terminal, the live view in a notebook.

``open_view`` is the one place where a view is chosen; any listener of events can take its place.
"""

from __future__ import annotations

import sys

from stark.core.interfaces import Listener
from stark.core.records import Event, EventKind
from stark.core.tree import ROOT_ID, Node
from stark.progress.notebook import NotebookView, is_notebook
from stark_worker.protocol.report_text import format_verdict, strip_control_chars


def open_view(wanted: bool = True) -> Listener:
    """Return the listener that shows a run here."""
    if not wanted:
        return lambda event: None
    return NotebookView() if is_notebook() else LineView()


class LineView:
    """Writes a line for each node and note."""

    def __init__(self) -> None:
        self._root_ms: float | None = None

    def __call__(self, event: Event) -> None:
        if event.kind is EventKind.LANDED and event.node is not None:
            _write_line(self._format(event.node))
        elif event.kind is EventKind.NOTE:
            _write_line(strip_control_chars(event.text))

    def _format(self, node: Node) -> str:
        if node.id == ROOT_ID:
            self._root_ms = node.runtime_ms
            return f"original  {format_verdict(node.report)}"
        return f"#{node.id}  {format_verdict(node.report, self._root_ms)}"


def _write_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
