"""Runs a grid: many runs in parallel, one evaluator, one store.

A run mostly waits for its models, so many runs keep the lanes of one evaluator busy. What is stored is done: the same
command continues with what is missing. A cell ends in one of four ways: its budget is used up, its task is unusable,
the machinery had a fault (it is tried again), or the user stopped it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from stark.bench.cell import Cell, GivenSource
from stark.bench.progress import BenchProgress, OnCellEnd, OnNote, ProgressMeter, plan_cell
from stark.bench.resume import StoredCells
from stark.core.errors import DegenerateTask, EvaluatorError, ModelError, StarkError, TaskError
from stark.core.interfaces import Listener
from stark.core.records import Ending, EndReason, Event, EventKind, Final, Kind
from stark.core.steps import Work
from stark.core.tree import ROOT_ID, Attempt, Node, Role, attempts_of
from stark.evaluation.open import open_evaluator
from stark.evaluation.requests import check_reference, make_request
from stark.evaluation.shared import SharedEvaluator
from stark.models.limited import ProviderQueues
from stark.progress.board import Board, NodeLine
from stark.run.assembly import OpenModels, assemble, check_prices, open_models
from stark.run.events import EventSender, recording
from stark.run.interrupts import interruptible
from stark.run.loop import AS_UNINTERRUPTED, Run
from stark.store.lookup import load_reports
from stark.store.open import open_store
from stark.store.sqlite import SqliteStore
from stark_worker.protocol.baselines import COMPILED
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import Entry, EvalRequest

MAX_FAULTED_TASKS = 3  # that many tasks in a row, with no success between them: the machinery is down


class Bench:
    """A benchmark in progress."""

    def __init__(
        self,
        cells: Sequence[Cell],
        store: SqliteStore,
        evaluator: SharedEvaluator,
        device: DeviceFacts,
        on_cell_end: OnCellEnd = lambda cell, ending, progress: None,
        both_scores: bool = False,
        on_note: OnNote = lambda text: None,
        board: Board | None = None,
        listener: Listener = lambda event: None,
    ) -> None:
        self._board, self._listener = board or Board(), listener
        self._cells, self._store, self._evaluator = cells, store, evaluator
        self._on_cell_end, self._on_note = on_cell_end, on_note
        self._stored = StoredCells(cells, store, device, both_scores)
        self._running: set[Run] = set()
        self._open_models: OpenModels = {}
        self._queues = ProviderQueues()
        self._faults_in_a_row: set[str] = set()  # names of tasks
        self._faulted_tasks = self._stored.faulted_tasks()
        self._meter = ProgressMeter(cells, sum(self._stored.made.values()), self._stored.spent_usd())
        self.stopped = False
        self.fault: StarkError | None = None
        for cell in cells:
            self._share_reference(cell)

    has_begun = True  # the first Ctrl-C always lets running attempts finish

    def stop(self, why: str = "Stopping", again: str = "Ctrl-C once more") -> None:
        """Begin nothing further; running attempts finish."""
        if not self.stopped:
            self._on_note(f"{why}: running attempts are finished first. {again} stops at once.")
        self.stopped = True
        for run in self._running:
            run.stop()

    async def run(self, parallel_runs: int) -> None:
        """Work through the grid with that many runs in parallel."""
        self._stored.create_missing()
        self._board.parallel_runs = parallel_runs
        for cell in self._stored.all_cells():
            self._show(cell)
        queue = [cell for cell in self._cells if not self._stored.is_settled(cell)]

        async def work() -> None:
            while queue and not self.stopped:
                await self._settle(queue.pop(self._next_place(queue)))

        workers = [asyncio.create_task(work()) for _ in range(parallel_runs)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def progress(self) -> BenchProgress:
        """Return how far the benchmark is."""
        spent, left = self._stored.spent_usd(), self._board.seconds_left(time.time())
        return self._meter.measure(self._stored.made, spent, self._stored.has_ended, left)

    @property
    def no_usable_task(self) -> bool:
        """True if every task is broken or tests nothing."""
        return self._stored.has_only_unusable_tasks()

    async def _settle(self, cell: Cell) -> None:
        if not self._stored.has_ended(cell):
            await self._run_cell(cell)
        if rescored := self._stored.cell_to_rescore(cell):
            await self._run_cell(rescored, self._store.final(cell.id))

    async def _run_cell(self, cell: Cell, final: Final | None = None) -> None:
        try:
            ending = await (self._search(cell) if cell.kind is Kind.SEARCH else self._judge(cell, final))
            self._faults_in_a_row.clear()
            self._faulted_tasks.discard(cell.task.name)
        except TaskError as error:
            ending = Ending(EndReason.BROKEN_TASK, str(error))
        except (EvaluatorError, ModelError) as error:
            ending = Ending(EndReason.FAULT, str(error))
            self._note_fault(cell, error)
        self._stored.end(cell, ending)
        self._events(cell).send(EventKind.ENDED, text=ending.reason, ending=ending)
        self._on_cell_end(cell, ending, self.progress())

    def _show(self, cell: Cell) -> None:
        """Put a cell on the board, with what is stored of it."""
        run = self._board.add(
            plan_cell(cell, self._stored.record(cell)),
            map(NodeLine.of_judgement, self._store.judgements(cell.id)),
            self._store.final(cell.id),
        )
        run.has_ended, run.ending = self._stored.has_ended(cell), self._stored.ending(cell)
        run.spent = self._store.spent(cell.id)

    def _events(self, cell: Cell) -> EventSender:
        return EventSender(self._listener, cell.id, lambda: self._store.spent(cell.id))

    async def _search(self, cell: Cell) -> Ending:
        def count_attempt(event: Event) -> None:
            self._listener(event)
            if event.kind is EventKind.LANDED and event.node is not None:
                self._stored.made[cell.id] += len(attempts_of([event.node]))

        record = self._stored.record(cell)
        rules = replace(AS_UNINTERRUPTED, is_refusal_final=self._stored.has_answered(cell))
        run = assemble(record, self._store, self._evaluator, count_attempt, self._open_models, rules, self._queues)
        self._running.add(run)  # before it waits for its reference, so that stop() reaches it
        try:
            return Ending((await run.optimize()).reason)
        except DegenerateTask as task:
            return Ending(EndReason.DEGENERATE_TASK, task.why)
        finally:
            self._running.discard(run)

    async def _judge(self, cell: Cell, final: Final | None) -> Ending:
        """Judge given sources, each as a child of the reference. ``final`` holds a winner's report by this score."""
        stored = self._stored.node_numbers(cell)
        if ROOT_ID not in stored:
            with self._events(cell).evaluating(ROOT_ID, Work.REFERENCE):
                report = await self._evaluator.evaluate(_reference_request(cell))
            check_reference(report)
            self._land(cell, Node(ROOT_ID, None, Attempt(Role.REFERENCE, cell.task.source, report)))
        role = Role.OTHER if cell.kind is Kind.JUDGED else Role.GIVEN
        for given in cell.given:
            if given.number not in stored:
                known = replace(final, score=cell.settings.evaluation.score).report if final else None
                if known is None and self.stopped:
                    return Ending(EndReason.STOPPED)
                report = known or await self._judge_source(cell, given)
                attempt = Attempt(role, given.source, report, notes=(given.label,))
                self._land(cell, Node(given.number, ROOT_ID, attempt))
        return Ending(EndReason.DONE)

    def _land(self, cell: Cell, node: Node) -> None:
        self._store.finish(cell.id, node)
        self._events(cell).send(EventKind.LANDED, node.id, node=node)

    async def _judge_source(self, cell: Cell, given: GivenSource) -> EvalReport:
        request, work = make_request(cell.task, given.source, cell.settings.evaluation, given.entry), Work.GIVEN
        if cell.kind is Kind.BASELINES:  # the reference of the runs may have been timed on another day
            request = replace(request, opponent_source=cell.task.source)
            work = Work.COMPILE if given.label == COMPILED else Work.AUTOTUNE
        with self._events(cell).evaluating(given.number, work):
            return await self._evaluator.evaluate(request)

    def _share_reference(self, cell: Cell) -> None:
        """Let all runs on a task use the stored report on its own model."""
        request = _reference_request(cell)
        if not self._evaluator.has_reference(request) and (report := self._stored.reference_report(cell)):
            self._evaluator.add_reference(request, report)

    def _next_place(self, queue: Sequence[Cell]) -> int:
        """Return the place of the next cell. Tasks on which something faulted come last."""
        return next((place for place, cell in enumerate(queue) if cell.task.name not in self._faulted_tasks), 0)

    def _note_fault(self, cell: Cell, error: StarkError) -> None:
        self.fault = error
        self._faults_in_a_row.add(cell.task.name)
        self._faulted_tasks.add(cell.task.name)
        if len(self._faults_in_a_row) >= MAX_FAULTED_TASKS:
            self.stop(f"Stopping after {MAX_FAULTED_TASKS} faults in a row", "Ctrl-C twice")


def _reference_request(cell: Cell) -> EvalRequest:
    return make_request(cell.task, cell.task.source, cell.settings.evaluation, entry=Entry.REFERENCE)


async def run_grid(
    cells: Sequence[Cell],
    folder: Path,
    parallel_runs: int,
    on_cell_end: OnCellEnd,
    both_scores: bool = False,
    signals: bool = False,
    on_note: OnNote = lambda text: None,
    board: Board | None = None,
    listener: Listener = lambda event: None,
) -> Bench:
    """Work through a grid in a store, which is made if it is missing. The returned bench says what ended it early."""
    searches = [cell for cell in cells if cell.kind is Kind.SEARCH]
    for settings in {(cell.settings.method, cell.switch): cell.settings for cell in searches}.values():
        check_prices(settings, open_models(settings))
    with interruptible(signals) as running, closing(open_store(folder, write=True)) as store:
        async with SharedEvaluator(open_evaluator(cells[0].settings.evaluation, load_reports)) as evaluator:
            device = await evaluator.device()
            with recording(folder, board, listener) as (shown, record):
                bench = Bench(cells, store, evaluator, device, on_cell_end, both_scores, on_note, shown, record)
                running.append(bench)
                await bench.run(parallel_runs)
                return bench
