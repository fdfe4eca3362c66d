"""News of a run for its listener, and for readers of its folder."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stark.core.interfaces import Listener
from stark.core.records import Event, EventKind, Spend
from stark.core.steps import Step, Work
from stark.evaluation.steps import listening
from stark.progress.board import Board
from stark.store.flights_file import remove_flights, write_flights

WRITE_EVERY_S = 0.2  # with hundreds of runs in flight, each event would write thousands of lines


class EventSender:
    """Sends the events of a run to its listener, each with the amount spent so far."""

    def __init__(self, listener: Listener, run_id: str, spent: Callable[[], Spend] = Spend) -> None:
        self._listener, self._run_id, self._spent = listener, run_id, spent

    def send(self, kind: EventKind, number: int | None = None, **facts: Any) -> None:
        self._listener(Event(kind, number, spent=self._spent(), run=self._run_id, **facts))

    def note(self, text: str, number: int | None = None) -> None:
        self.send(EventKind.NOTE, number, text=text)

    @contextmanager
    def evaluating(self, number: int, work: Work = Work.ATTEMPT) -> Iterator[None]:
        """Send every step of the evaluations within."""

        def send_step(step: Step) -> None:
            self.send(EventKind.EVALUATING, number, work=work, step=step)

        send_step(Step.EVALUATING)
        with listening(send_step):
            yield


@contextmanager
def recording(folder: Path, board: Board | None, listener: Listener) -> Iterator[tuple[Board, Listener]]:
    """Keep what is in flight on the board and in a file of the folder, where other processes read it.

    Events go to the yielded listener, which passes them on. Its runs must be added to the yielded board. A listener
    with a board of its own shows that one.
    """
    kept: Board = board or getattr(listener, "board", None) or Board()
    file = _FlightsFile(folder, kept)

    def record(event: Event) -> None:
        kept.apply(event, time.time())
        file.update()
        listener(event)

    try:
        yield kept, record
    finally:
        file.remove()


class _FlightsFile:
    """The file of what is in flight, written at most every ``WRITE_EVERY_S``, and after the last change."""

    def __init__(self, folder: Path, board: Board) -> None:
        self._folder, self._board = folder, board
        self._next_at = -math.inf
        self._due: asyncio.TimerHandle | None = None

    def update(self) -> None:
        if self._due is not None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._next_at:
            self._due = loop.call_at(self._next_at, self._write)
        else:
            self._write()

    def _write(self) -> None:
        self._due = None
        self._next_at = asyncio.get_running_loop().time() + WRITE_EVERY_S
        write_flights(self._folder, self._board.flights(time.time()))

    def remove(self) -> None:
        if self._due is not None:
            self._due.cancel()
        remove_flights(self._folder)
