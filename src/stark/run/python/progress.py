"""Shows a run of the Python API while it works: lines in a terminal, one line that changes in a notebook.

``open_view`` is the one place where a view is chosen; any listener of events can take its place.
"""

from __future__ import annotations

import sys
from typing import Any

from stark.core.interfaces import Listener
from stark.core.records import Event, EventKind
from stark.core.tree import ROOT_ID, Node
from stark_worker.protocol.report_text import format_verdict, strip_control_chars


def open_view(wanted: bool = True) -> Listener:
    """Return the listener that shows a run here."""
    if not wanted:
        return lambda event: None
    return View(_open_notebook_line() if _is_notebook() else _write_line)


class View:
    """Turns events into lines."""

    def __init__(self, show: Any) -> None:
        self._show = show
        self._root_ms: float | None = None

    def __call__(self, event: Event) -> None:
        if event.kind is EventKind.LANDED and event.node is not None:
            self._show(self._format(event.node))
        elif event.kind is EventKind.NOTE:
            self._show(strip_control_chars(event.text))

    def _format(self, node: Node) -> str:
        if node.id == ROOT_ID:
            self._root_ms = node.runtime_ms
            return f"original  {format_verdict(node.report)}"
        return f"#{node.id}  {format_verdict(node.report, self._root_ms)}"


def _write_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _is_notebook() -> bool:
    """True in a notebook's kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


def _open_notebook_line() -> Any:
    from IPython import display as notebook

    display: Any = notebook.display
    HTML: Any = notebook.HTML  # noqa: N806
    handle = display(HTML("<code>STARK begins ...</code>"), display_id=True)
    return lambda text: handle.update(HTML(f"<code>{_escape(text)}</code>"))


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
