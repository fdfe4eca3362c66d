"""Shows a run in a notebook as the terminal does: one output that is updated. Needs IPython only where it is used.

stark.optimize("task.py", listener=NotebookView())
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import time
from html import escape
from typing import Any

from stark.core.records import Event, EventKind
from stark.progress.board import Board
from stark.progress.draw_run import draw_only_run
from stark.progress.words import UNICODE, Frame, Line, text_of

WIDTH, HEIGHT = 110, 40
EVERY_S = 0.5
CSS = {
    "bold": "font-weight:bold",
    "dim": "opacity:0.6",
    "green": "color:#1a7f37",
    "bold green": "font-weight:bold;color:#1a7f37",
    "red": "color:#cf222e",
    "yellow": "color:#9a6700",
    "cyan": "color:#1b7c83",
}
PAGE = '<pre style="line-height:1.3;white-space:pre;overflow-x:auto">{}</pre>'


def is_notebook() -> bool:
    """True in a notebook. An IPython terminal is none."""
    if "IPython" not in sys.modules:
        return False
    shell = importlib.import_module("IPython").get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class NotebookView:
    """A listener that draws a run into one output of a notebook, until the run has ended."""

    def __init__(self) -> None:
        self.board = Board()  # the run fills it
        self._began = time.time()
        self._over = threading.Event()
        self._drawing = threading.Lock()
        self._output: Any = None

    def __call__(self, event: Event) -> None:
        if self._output is None:
            self._output = importlib.import_module("IPython.display").display(self, display_id=True)
            threading.Thread(target=self._keep_drawing, daemon=True).start()
        if event.kind is EventKind.ENDED:
            self._over.set()
            self._draw()

    def _repr_html_(self) -> str:
        now = time.time()
        with self.board.lock:
            doing = "" if self.board.runs else "starting"
            frame = Frame(WIDTH, HEIGHT, UNICODE, now, now - self._began, self.board.seconds_left(now), doing)
            return format_lines(draw_only_run(self.board, frame))

    def _keep_drawing(self) -> None:
        """Draw while time passes: what is in flight shows its seconds."""
        while not self._over.wait(EVERY_S):
            self._draw()

    def _draw(self) -> None:
        with self._drawing:
            self._output.update(self)


def format_lines(lines: list[Line]) -> str:
    """Return lines as HTML. All text is escaped."""
    return PAGE.format("\n".join("".join(map(_format_part, line)) for line in lines))


def _format_part(part: str | tuple[str, str]) -> str:
    text = escape(text_of(part))
    return text if isinstance(part, str) or part[1] not in CSS else f'<span style="{CSS[part[1]]}">{text}</span>'
