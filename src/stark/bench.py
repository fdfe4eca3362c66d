"""Runs a grid: many runs beside each other, one evaluator, one store.

A run mostly waits for its models, so many of them keep the lanes of one evaluator full. Whatever is stored is done:
started again, a benchmark goes on with what is missing. Four ends are told apart: a search that used its budget up,
a task that cannot be searched on, a fault of the machinery (to be tried again), and a stop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from stark.agents.prompts import load_templates
from stark.api import OpenModels, assemble, check_device, check_prices, open_models, versions
from stark.config import differences
from stark.errors import EvaluatorError, ModelError, StarkError, TaskError, UsageError
from stark.evaluation import open_evaluator
from stark.evaluation.shared import SharedEvaluator
from stark.finals import winner
from stark.grid import Cell, Kind
from stark.interfaces import Ending, Event, Final, RunRecord, Store
from stark.metrics import attempts_of
from stark.run import Run, eval_request
from stark.store import open_store
from stark.stored import stored_reports
from stark.tree import ROOT_ID, Node, Role, Tree
from stark.waiting import interruptible
from stark_worker.protocol import DEGENERATE, DeviceFacts, EvalReport, EvalRequest

DONE = "attempts"
DEGENERATE_TASK, BROKEN_TASK, FAULT, STOPPED = "degenerate", "task", "fault", "stopped"
TRY_AGAIN = frozenset({BROKEN_TASK, FAULT, STOPPED})
FAULTS_IN_A_ROW = 3  # with nothing done between them: the machinery is down, and no further run would fare better


@dataclass(frozen=True)
class Standing:
    """How far a benchmark is. What is left is guessed from what this session took per attempt."""

    cells: int
    ended: int
    attempts: int
    made: int
    usd: float
    usd_left: float | None
    seconds_left: float | None


Told = Callable[[Cell, Ending, Standing], None]
Noted = Callable[[str], None]


class Bench:
    """A benchmark in progress."""

    def __init__(
        self,
        cells: Sequence[Cell],
        store: Store,
        evaluator: SharedEvaluator,
        device: DeviceFacts,
        told: Told = lambda cell, ending, standing: None,
        both_scores: bool = False,
        noted: Noted = lambda text: None,
    ) -> None:
        self._cells, self._store, self._evaluator, self._device = cells, store, evaluator, device
        self._told, self._both_scores, self._noted = told, both_scores, noted
        self._records = {record.id: record for record in store.runs()}
        self._endings = {run_id: ending for run_id in self._records if (ending := store.ending(run_id))}
        self._running: set[Run] = set()
        self._opened: OpenModels = {}
        self.stopped = False
        self._faults = 0
        self.fault: StarkError | None = None
        self._began = time.monotonic()
        for record in self._records.values():
            check_device(record.device, device)
        for cell in cells:
            self._reconcile(cell)
        self._made = {cell.id: self._remember(cell) for cell in cells}
        self._made_before, self._usd_before = sum(self._made.values()), self._spent()

    begun = True  # a first Ctrl-C always lets what is in flight land

    def stop(self, why: str = "Stopping") -> None:
        """Begin nothing further; attempts in flight land."""
        if not self.stopped:
            self._noted(f"{why}: attempts in flight are finished first. Ctrl-C once more stops at once.")
        self.stopped = True
        for run in self._running:
            run.stop()

    async def run(self, at_once: int) -> None:
        """Work the grid off, that many runs beside each other."""
        queue = deque(cell for cell in self._cells if not self._settled(cell))

        async def work() -> None:
            while queue and not self.stopped:
                await self._settle(queue.popleft())

        workers = [asyncio.create_task(work()) for _ in range(at_once)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def standing(self) -> Standing:
        """How far it is."""
        searches = [cell for cell in self._cells if cell.kind is Kind.SEARCH]
        left = sum(
            cell.settings.budget.attempts - self._made[cell.id] for cell in searches if self._ending(cell) is None
        )
        made, usd = sum(self._made.values()), self._spent()
        fresh = made - self._made_before
        elapsed = time.monotonic() - self._began
        return Standing(
            cells=len(self._cells),
            ended=sum(self._ending(cell) is not None for cell in self._cells),
            attempts=made + left,
            made=made,
            usd=usd,
            usd_left=(usd - self._usd_before) / fresh * left if fresh else None,
            seconds_left=elapsed / fresh * left if fresh else None,
        )

    # -- what was there before --------------------------------------------------------------------------------------

    def _reconcile(self, cell: Cell) -> None:
        """Refuse a store that holds another experiment under this name; take over a larger budget."""
        record = self._records.get(cell.id)
        if record is None:
            return
        wanted = cell.settings.model_dump(mode="json")
        changed = list(differences(wanted, record.settings))
        other = [said for group, said in changed if group not in ("budget", "jobs")]
        if other or record.task.source != cell.task.source:
            what = ", ".join(other) if other else "another task file"
            raise UsageError(
                f"The store holds {cell.id!r} with {what}.",
                "Choose a new folder with --store, or go on with the settings that began it.",
            )
        if changed:
            self._store.amend(cell.id, wanted)
            self._records[cell.id] = replace(record, settings=wanted)
            for again in (cell, cell.rescored()):  # a limit that was reached may not be one any more
                self._endings.pop(again.id, None)

    def _remember(self, cell: Cell) -> int:
        """Take over the reference of a stored run; how many attempts it has made."""
        if cell.id not in self._records:
            return 0
        judgements, request = self._store.judgements(cell.id), self._root_request(cell)
        if judgements and not self._evaluator.knows(request):
            self._evaluator.learn(request, self._store.nodes(cell.id)[0].report)  # the root landed first
        if cell.kind is Kind.JUDGED and not {given.number for given in cell.given} <= {each.id for each in judgements}:
            self._endings.pop(cell.id, None)  # the other tool has made more since
        return len(attempts_of(judgements)) if cell.kind is Kind.SEARCH else 0

    def _ending(self, cell: Cell) -> Ending | None:
        """The ending that settles a cell: none where there is more to do."""
        ending = self._endings.get(cell.id)
        if ending is None or ending.reason in TRY_AGAIN:
            return None
        if ending.reason == DEGENERATE_TASK and cell.settings.evaluation.allow_degenerate:
            return None
        more = cell.kind is Kind.SEARCH and self._made[cell.id] < cell.settings.budget.attempts
        return None if ending.reason == DONE and more else ending

    def _settled(self, cell: Cell) -> bool:
        ended = self._ending(cell) is not None
        return ended and not (self._to_rescore(cell) and self._ending(cell.rescored()) is None)

    def _to_rescore(self, cell: Cell) -> bool:
        """Whether a search that ended is to be judged by the other score as well."""
        ending = self._ending(cell)
        searched = cell.kind is Kind.SEARCH and ending is not None and ending.reason != DEGENERATE_TASK
        return self._both_scores and searched

    def _spent(self) -> float:
        return sum(self._store.spent(run_id).usd for run_id in self._records)

    # -- one cell ---------------------------------------------------------------------------------------------------

    async def _settle(self, cell: Cell) -> None:
        if self._ending(cell) is None:
            await self._end(cell)
        if not self._settled(cell) and self._to_rescore(cell):
            await self._end(cell.rescored(self._winner(cell)), self._store.final(cell.id))

    async def _end(self, cell: Cell, final: Final | None = None) -> None:
        record = self._records.get(cell.id) or self._create(cell)
        try:
            ending = await (self._search(cell, record) if cell.kind is Kind.SEARCH else self._judge(cell, final))
            self._faults = 0
        except TaskError as error:
            ending = Ending(BROKEN_TASK, str(error))
        except (EvaluatorError, ModelError) as error:
            ending = Ending(FAULT, str(error))
            self._note_fault(error)
        self._store.end(cell.id, ending)
        self._endings[cell.id] = ending
        self._told(cell, ending, self.standing())

    async def _search(self, cell: Cell, record: RunRecord) -> Ending:
        reference = await self._reference(cell)
        if DEGENERATE in reference.checks and not cell.settings.evaluation.allow_degenerate:
            return Ending(DEGENERATE_TASK, reference.checks[DEGENERATE])

        def landed(event: Event) -> None:
            if event.kind == "landed" and event.node is not None:
                self._made[cell.id] += len(attempts_of([event.node]))

        run = assemble(record, self._store, self._evaluator, landed, self._opened)
        self._running.add(run)
        try:
            return Ending((await run.optimize()).reason)
        finally:
            self._running.discard(run)

    async def _judge(self, cell: Cell, final: Final | None) -> Ending:
        """Sources that are given, each a child of the reference. A final has judged a winner by this score already."""
        stored = {node.id for node in self._store.nodes(cell.id)}
        if ROOT_ID not in stored:
            root = Node(ROOT_ID, None, Role.REFERENCE, cell.task.source, await self._reference(cell))
            self._store.finish(cell.id, root)
        role = Role.OTHER if cell.kind is Kind.JUDGED else Role.GIVEN
        for given in cell.given:
            if given.number not in stored:
                request = eval_request(cell.task, given.source, cell.settings.evaluation, given.entry)
                known = replace(final, score=request.score).report if final else None
                report = known or await self._evaluator.evaluate(request)
                node = Node(given.number, ROOT_ID, role, given.source, report, notes=(given.label,))
                self._store.finish(cell.id, node)
        return Ending(DONE)

    async def _reference(self, cell: Cell) -> EvalReport:
        """The report on the task's own model, which has to work."""
        report = await self._evaluator.evaluate(self._root_request(cell))
        if report.timing is None:
            raise TaskError(f"The task's own Model does not pass its evaluation: {report.outcome}. {report.log[-500:]}")
        return report

    def _winner(self, cell: Cell) -> str | None:
        """The source of the kernel that a search reports."""
        tree = Tree()
        for node in self._store.nodes(cell.id):
            tree.add(node)
        best = winner(tree, self._store.final(cell.id))
        return best.source if best else None

    def _create(self, cell: Cell) -> RunRecord:
        record = record_of(cell, self._device)
        self._store.create(record)
        self._records[cell.id] = record
        return record

    def _note_fault(self, error: StarkError) -> None:
        self.fault, self._faults = error, self._faults + 1
        if self._faults >= FAULTS_IN_A_ROW:
            self.stop(f"Stopping after {FAULTS_IN_A_ROW} faults in a row")

    def _root_request(self, cell: Cell) -> EvalRequest:
        return eval_request(cell.task, cell.task.source, cell.settings.evaluation, entry="Model")


def record_of(cell: Cell, device: DeviceFacts) -> RunRecord:
    """What a cell is stored as."""
    return RunRecord(
        id=cell.id,
        created_at=datetime.now(UTC).isoformat(),
        task=cell.task,
        given=None,
        settings=cell.settings.model_dump(mode="json"),
        templates=load_templates(cell.settings.prompts),
        versions=versions(),
        device=device,
        labels=cell.labels,
    )


async def run_grid(
    cells: Sequence[Cell],
    folder: Path,
    at_once: int,
    told: Told,
    both_scores: bool = False,
    signals: bool = False,
    noted: Noted = lambda text: None,
) -> Bench:
    """Work off a grid in a store, which is made where there is none. What ended it early is in the returned bench."""
    searches = [cell for cell in cells if cell.kind is Kind.SEARCH]
    for settings in {(cell.settings.method, cell.switch): cell.settings for cell in searches}.values():
        check_prices(settings, open_models(settings))
    with interruptible(signals) as running, closing(open_store(folder, write=True)) as store:
        async with SharedEvaluator(open_evaluator(cells[0].settings.evaluation, stored_reports)) as evaluator:
            bench = Bench(cells, store, evaluator, await evaluator.device(), told, both_scores, noted)
            running.append(bench)
            await bench.run(at_once)
            return bench
