"""Fills a board from a store, so that another process can follow a run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from stark.core.interfaces import StoreReader
from stark.core.records import Ending, EndReason, RunRecord
from stark.core.steps import Flights
from stark.progress.board import Board, NodeLine, RunBoard, RunPlan, count_down
from stark.store.flights_file import read_flights
from stark.store.open import open_store

NOT_AT_THE_END = frozenset({EndReason.STOPPED, EndReason.FAULT, EndReason.BROKEN_TASK})


class StoredBoard:
    """The board of a store. ``refresh`` brings it up to date."""

    def __init__(self, folder: Path, only: str | None = None) -> None:
        self.folder, self._only = folder, only
        self.board = Board()
        self.flights: Flights | None = None
        self.seconds = 0.0
        self.refresh()

    def is_written(self) -> bool:
        """True if a process works on the store."""
        return self.flights is not None

    def refresh(self) -> None:
        """Read what has changed."""
        flights = read_flights(self.folder)
        with closing(open_store(self.folder, write=False)) as store, self.board.lock:
            for record in store.runs():
                if self._only is None or record.id == self._only:
                    self._refresh_run(store, record)
            self.seconds = sum(store.seconds(run_id) for run_id in self.board.runs)
            self._take_flights(flights)

    def seconds_left(self, now: float) -> float | None:
        """Return the estimate of the writing process."""
        return count_down(self.flights, now).seconds_left if self.flights else None

    def _refresh_run(self, store: StoreReader, record: RunRecord) -> None:
        run = self.board.runs.get(record.id)
        plan = RunPlan.of(record)
        if run is None or run.plan != plan:
            run = self.board.add(plan)
        ending = store.ending(record.id)
        if run.has_ended and ending == run.ending:
            return
        judged = store.judgements(record.id)
        if len(judged) != len(run.nodes):
            is_single = self._only is not None or len(self.board.runs) == 1
            lines = map(NodeLine.of, store.nodes(record.id)) if is_single else map(NodeLine.of_judgement, judged)
            run.nodes.update({node.id: node for node in lines})
        run.spent, run.final, run.ending = store.spent(record.id), store.final(record.id), ending

    def _take_flights(self, flights: Flights | None) -> None:
        self.flights = flights
        for run in self.board.runs.values():
            found = [flight for flight in (flights or Flights()).flights if flight.run == run.plan.run]
            run.flights = {(flight.work, flight.number): flight for flight in found}
            run.has_ended = not found and has_ended(run, flights is not None)


def has_ended(run: RunBoard, is_written: bool) -> bool:
    """True if nothing more will happen to a run: it has an ending that counts, or no process writes."""
    if not is_written:
        return True
    ending: Ending | None = run.ending
    return ending is not None and ending.reason not in NOT_AT_THE_END
