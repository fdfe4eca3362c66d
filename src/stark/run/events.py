"""News of a run for its listener, and for readers of its folder."""

from __future__ import annotations

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

    def record(event: Event) -> None:
        now = time.time()
        kept.apply(event, now)
        write_flights(folder, kept.flights(now))
        listener(event)

    try:
        yield kept, record
    finally:
        remove_flights(folder)
