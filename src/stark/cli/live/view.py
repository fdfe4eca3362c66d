"""The view of a command at work: a live screen on a terminal that can show it, or else plain lines with a heartbeat."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.text import Text

from stark.cli.terminal.screen import console
from stark.core.interfaces import Listener
from stark.core.records import Event
from stark.progress.board import Board
from stark.progress.words import (
    FRAMES_PER_S,
    Frame,
    Line,
    describe_flight,
    format_duration,
    format_left,
    format_money,
    marks_for,
    plain,
)

QUIET_S, MAX_QUIET_S = 10.0, 60.0  # without a line for that long, plain lines have a heartbeat
MAX_NAMED = 3  # pieces of work that a heartbeat names


Draw = Callable[[Board, Frame], list[Line]]
TimeLeft = Callable[[float], float | None]


def can_show_live(plain: bool = False) -> bool:
    """True if standard output is a terminal that can be drawn on."""
    return not plain and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


class View:
    """Shows a board while a command works. ``doing`` names what it does outside the board.

    It is a listener: in plain mode it passes events to ``say``, which prints lines.
    """

    def __init__(
        self,
        draw: Draw,
        say: Listener | None = None,
        plain: bool = False,
        board: Board | None = None,
        doing: str = "starting",
    ) -> None:
        self.board = board or Board()
        self.is_live = can_show_live(plain)
        self.began = time.time()
        self._draw, self._say = draw, say
        self._doing, self._doing_since = doing, self.began
        self._screen = Console(highlight=False) if self.is_live else None
        self._live: Live | None = None
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._last_line, self._quiet_s = time.monotonic(), QUIET_S
        self._log = _NoteHandler(self.board)
        self.time_left: TimeLeft = self.board.seconds_left

    def __enter__(self) -> Self:
        if self._screen is None:
            self._heart.start()
            return self
        self._log.take_over()
        self._live = Live(
            _Picture(self), console=self._screen, screen=True, refresh_per_second=FRAMES_PER_S, transient=True
        )
        self._live.start(refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        if self._live is not None:
            self._live.stop()
            self._log.give_back()
            for note in self.board.notes:
                console.print(Text(plain(note), "yellow"))
        else:
            self._heart.join()

    def __call__(self, event: Event) -> None:
        self._doing = ""  # from now on the board says it
        if not self.is_live and self._say is not None:
            self._say(event)
            self._last_line, self._quiet_s = time.monotonic(), QUIET_S

    def doing(self, text: str) -> None:
        """Name what the command does now."""
        self._doing, self._doing_since = text, time.time()
        if not self.is_live:
            console.print(Text(f"{plain(text)} ...", "dim"))

    def note(self, text: str) -> None:
        """Show a sentence."""
        if self.is_live:
            with self.board.lock:
                self.board.notes.append(text)
        else:
            console.print(Text(plain(text), "yellow"))

    def line(self, text: Text) -> None:
        """Print a line in plain mode; the live view shows the same on its board."""
        if not self.is_live:
            console.print(text)
            self._last_line, self._quiet_s = time.monotonic(), QUIET_S

    def frame(self, width: int, height: int) -> Frame:
        """Return the frame of this moment."""
        now = time.time()
        doing = f"{self._doing} {format_duration(now - self._doing_since)}" if self._doing else ""
        marks = marks_for(self._screen.encoding if self._screen else None)
        return Frame(width, height, marks, now, now - self.began, self.time_left(now), doing)

    def draw(self, width: int, height: int) -> list[Line]:
        """Return the lines of this moment."""
        return self.draw_with(self.frame(width, height))

    def draw_with(self, frame: Frame) -> list[Line]:
        """Return the lines in a frame."""
        with self.board.lock:
            return self._draw(self.board, frame)

    def _beat(self) -> None:
        while not self._over.wait(0.5):
            if time.monotonic() - self._last_line >= self._quiet_s:
                with self.board.lock:
                    text = describe_board(self.board, self.frame(1, 1))
                console.print(Text(text, "dim"))
                self._last_line, self._quiet_s = time.monotonic(), min(MAX_QUIET_S, 2 * self._quiet_s)


def print_lines(lines: Sequence[Line]) -> None:
    """Print lines that are drawn once."""
    for line in lines:
        console.print(Text.assemble(*line))


def describe_board(board: Board, frame: Frame) -> str:
    """Return a heartbeat: what is in flight, what is done, and the time left."""
    flights = [(flight, run.plan) for run in board.runs.values() for flight in run.flights.values()]
    names = [describe_flight(flight, plan, frame.now) for flight, plan in flights[:MAX_NAMED]]
    names += [f"{len(flights) - MAX_NAMED} more"] if len(flights) > MAX_NAMED else []
    made, planned = board.made, board.planned
    facts = [", ".join(names) or frame.doing or "waiting"]
    if board.runs:
        facts += [f"{made} of {planned} attempts", format_money(board.spent.usd), format_left(frame.seconds_left)]
    return f"  ... {format_duration(frame.elapsed_s)}: {'; '.join(map(plain, facts))}"


class _Picture:
    """The drawing of a view at the size of the terminal."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        lines = self._view.draw(options.max_width, options.height or screen.height)
        yield Group(*(Text.assemble(*line, no_wrap=True, overflow="crop") for line in lines))


class _NoteHandler(logging.Handler):
    """Turns log messages into notes while the screen is drawn on."""

    def __init__(self, board: Board) -> None:
        super().__init__(logging.WARNING)
        self._board, self._others = board, list[logging.Handler]()

    def emit(self, record: logging.LogRecord) -> None:
        self._board.notes.append(record.getMessage())

    def take_over(self) -> None:
        root = logging.getLogger()
        self._others, root.handlers = root.handlers, [self]

    def give_back(self) -> None:
        logging.getLogger().handlers = self._others
