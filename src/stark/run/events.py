"""News of a run for its listener."""

from __future__ import annotations

from stark.core.interfaces import Listener
from stark.core.records import Event, EventKind
from stark.core.tree import Node
from stark.run.budget import Ledger


class EventSender:
    """Sends events to the listener of a run, each with the amount spent so far."""

    def __init__(self, listener: Listener, ledger: Ledger) -> None:
        self._listener, self._ledger = listener, ledger

    def send(self, kind: EventKind, number: int | None = None, node: Node | None = None, text: str = "") -> None:
        self._listener(Event(kind, number, node, text, self._ledger.spent))

    def note(self, text: str, number: int | None = None) -> None:
        self.send(EventKind.NOTE, number, text=text)
