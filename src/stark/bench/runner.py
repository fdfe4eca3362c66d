"""Runs a grid: many runs beside each other, one evaluator, one store.

A run mostly waits for its models, so many of them keep the lanes of one evaluator full. Whatever is stored is done:
started again, a benchmark goes on with what is missing. Four ends are told apart: a search that used its budget up,
a task that cannot be searched on, a fault of the machinery (to be tried again), and a stop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from stark.agents.prompts import load_templates
from stark.bench.cell import Cell
from stark.bench.compatibility import changes, check_attempts, check_rules, check_settings, check_sources
from stark.core.errors import DegenerateTask, EvaluatorError, ModelError, StarkError, TaskError
from stark.core.interfaces import Store
from stark.core.records import BROKEN_TASK, DEGENERATE_TASK, DONE, FAULT, STOPPED, Ending, Event, Final, Kind, RunRecord
from stark.core.tree import ROOT_ID, Node, Role, Tree, attempts_of
from stark.evaluation.confirmation import winner
from stark.evaluation.open import open_evaluator
from stark.evaluation.requests import check_reference, eval_request
from stark.evaluation.shared import SharedEvaluator
from stark.run.assembly import OpenModels, assemble, check_device, check_prices, open_models, versions
from stark.run.interrupts import interruptible
from stark.run.loop import Run
from stark.store.lookup import stored_reports
from stark.store.open import open_store
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import EvalRequest

TRY_AGAIN = frozenset({BROKEN_TASK, FAULT, STOPPED})
UNUSABLE = frozenset({DEGENERATE_TASK, BROKEN_TASK})
FAULTS_IN_A_ROW = 3  # on as many tasks, with nothing done between them: the machinery is down


@dataclass(frozen=True)
class Standing:
    """How far a benchmark is. What is left is guessed from what this session took per attempt."""

    cells: int
    ended: int
    attempts: int
    made: int
    usd: float | None  # where every price is known
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
        self._faults: set[str] = set()  # tasks on which one run after the other faulted
        self._troubled = {
            record.task.name
            for record in self._records.values()
            if record.id in self._endings and self._endings[record.id].reason == FAULT
        }
        self.fault: StarkError | None = None
        self._began = time.monotonic()
        for record in self._records.values():
            check_device(record.device, device)
        self._made = {cell.id: self._remember(cell) for cell in cells}
        check_rules(cells, self._records.values())
        for cell in cells:
            self._check(cell)
        for cell in cells:  # nothing is written before all of it is found to fit
            self._take_over(cell)
        self._made_before, self._usd_before = sum(self._made.values()), self._spent()

    begun = True  # a first Ctrl-C always lets what is in flight land

    def stop(self, why: str = "Stopping", at_once: str = "Ctrl-C once more") -> None:
        """Begin nothing further; attempts in flight land."""
        if not self.stopped:
            self._noted(f"{why}: attempts in flight are finished first. {at_once} stops at once.")
        self.stopped = True
        for run in self._running:
            run.stop()

    async def run(self, at_once: int) -> None:
        """Work the grid off, that many runs beside each other. All of it is in the store before any of it begins, so
        that a report on half a grid says so."""
        self._create_all()
        queue = [cell for cell in self._cells if not self._settled(cell)]

        async def work() -> None:
            while queue and not self.stopped:
                await self._settle(queue.pop(self._next(queue)))

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
            usd_left=(usd - (self._usd_before or 0.0)) / fresh * left if usd is not None and fresh else None,
            seconds_left=elapsed / fresh * left if fresh else None,
        )

    @property
    def in_vain(self) -> bool:
        """Whether there was nothing to search on or to judge for: every task is broken, or tests nothing."""
        endings = [self._endings.get(cell.id) for cell in self._cells if cell.kind is not Kind.BASELINES]
        return all(ending is not None and ending.reason in UNUSABLE for ending in endings)

    # -- what was there before --------------------------------------------------------------------------------------

    def _check(self, cell: Cell) -> None:
        """Refuse a store that holds another experiment under this name."""
        record = self._records.get(cell.id)
        if record is None:
            return
        check_settings(cell, record)
        if cell.kind is Kind.SEARCH:
            check_attempts(cell, self._made[cell.id] + len(self._store.unfinished(cell.id)))
        if cell.kind is Kind.JUDGED:
            check_sources(cell, self._store.nodes(cell.id))

    def _take_over(self, cell: Cell) -> None:
        """Give a stored run the budget it has now. One that goes on is opened first, in the store as well: whoever is
        killed here leaves no end that does not belong to its budget."""
        record = self._records.get(cell.id)
        if record is None:
            return
        changed = {group for group, _ in changes(cell, record)}
        if self._goes_on(cell, changed):
            for each in self._stored(cell):
                self._note_ending(each, Ending(STOPPED, "There is more to do now."))
        if changed:
            for each in self._stored(cell):
                self._amend(each)

    def _amend(self, cell: Cell) -> None:
        wanted = cell.settings.model_dump(mode="json")
        self._store.amend(cell.id, wanted)
        self._records[cell.id] = replace(self._records[cell.id], settings=wanted)

    def _goes_on(self, cell: Cell, changed: set[str]) -> bool:
        """Whether a run that ended has more to do: attempts, kernels, or what was beyond a limit that has moved."""
        ending = self._endings.get(cell.id)
        if ending is None or ending.reason in TRY_AGAIN | {DEGENERATE_TASK}:
            return False
        if cell.kind is Kind.JUDGED:
            return not {given.number for given in cell.given} <= self._numbers(cell)
        if ending.reason == DONE:
            return cell.kind is Kind.SEARCH and self._made[cell.id] < cell.settings.budget.attempts
        return "budget" in changed

    def _stored(self, cell: Cell) -> list[Cell]:
        """The cell, and with a search its winner by the other score, where they are stored."""
        both = [cell, cell.rescored()] if cell.kind is Kind.SEARCH else [cell]
        return [each for each in both if each.id in self._records]

    def _remember(self, cell: Cell) -> int:
        """Take over the reference of a stored run; how many attempts it has made."""
        if cell.id not in self._records:
            return 0
        judgements, request = self._store.judgements(cell.id), self._root_request(cell)
        if judgements and not self._evaluator.knows(request):
            self._evaluator.learn(request, self._store.nodes(cell.id)[0].report)  # the root landed first
        return len(attempts_of(judgements)) if cell.kind is Kind.SEARCH else 0

    def _numbers(self, cell: Cell) -> set[int]:
        """The nodes of a stored run."""
        return {each.id for each in self._store.judgements(cell.id)}

    def _ending(self, cell: Cell) -> Ending | None:
        """The ending that settles a cell: none where there is more to do."""
        ending = self._endings.get(cell.id)
        return None if ending is None or ending.reason in TRY_AGAIN else ending

    def _settled(self, cell: Cell) -> bool:
        return self._ending(cell) is not None and self._to_rescore(cell) is None

    def _to_rescore(self, cell: Cell) -> Cell | None:
        """The winner of a search that ended, where it is still to be judged by the other score. A store that has
        winners by both keeps them so."""
        ending, rescored = self._ending(cell), cell.rescored()
        if cell.kind is not Kind.SEARCH or ending is None or ending.reason == DEGENERATE_TASK:
            return None
        if rescored.id not in self._records and not self._both_scores:
            return None
        best = self._winner(cell)
        if self._ending(rescored) is not None and (best is None or best.id in self._numbers(rescored)):
            return None
        return cell.rescored(best.source, best.id) if best else rescored

    def _spent(self) -> float | None:
        """US dollars; None where the price of any call is not known."""
        usages = [each for run_id in self._records for each in self._store.usage(run_id).values()]
        if any(each.usd is None for each in usages):
            return None
        return sum(self._store.spent(run_id).usd for run_id in self._records)

    # -- one cell ---------------------------------------------------------------------------------------------------

    async def _settle(self, cell: Cell) -> None:
        if self._ending(cell) is None:
            await self._end(cell)
        if rescored := self._to_rescore(cell):
            await self._end(rescored, self._store.final(cell.id))

    async def _end(self, cell: Cell, final: Final | None = None) -> None:
        try:
            ending = await (self._search(cell) if cell.kind is Kind.SEARCH else self._judge(cell, final))
            self._faults.clear()
            self._troubled.discard(cell.task.name)
        except TaskError as error:
            ending = Ending(BROKEN_TASK, str(error))
        except (EvaluatorError, ModelError) as error:
            ending = Ending(FAULT, str(error))
            self._note_fault(cell, error)
        self._note_ending(cell, ending)
        self._told(cell, ending, self.standing())

    async def _search(self, cell: Cell) -> Ending:
        def landed(event: Event) -> None:
            if event.kind == "landed" and event.node is not None:
                self._made[cell.id] += len(attempts_of([event.node]))

        record = self._records[cell.id]
        run = assemble(record, self._store, self._evaluator, landed, self._opened, self._has_answered(record))
        self._running.add(run)  # before it waits for its reference: whoever stops the benchmark stops it too
        try:
            return Ending((await run.optimize()).reason)
        except DegenerateTask as task:
            return Ending(DEGENERATE_TASK, task.why)
        finally:
            self._running.discard(run)

    async def _judge(self, cell: Cell, final: Final | None) -> Ending:
        """Sources that are given, each a child of the reference. A final has judged a winner by this score already."""
        stored = self._numbers(cell)
        if ROOT_ID not in stored:
            root = Node(ROOT_ID, None, Role.REFERENCE, cell.task.source, await self._reference(cell))
            self._store.finish(cell.id, root)
        role = Role.OTHER if cell.kind is Kind.JUDGED else Role.GIVEN
        for given in cell.given:
            if given.number not in stored:
                request = eval_request(cell.task, given.source, cell.settings.evaluation, given.entry)
                if cell.kind is Kind.BASELINES:  # the reference of the runs may have been timed on another day
                    request = replace(request, rival_source=cell.task.source)
                known = replace(final, score=request.score).report if final else None
                if known is None and self.stopped:
                    return Ending(STOPPED)
                report = known or await self._evaluator.evaluate(request)
                node = Node(given.number, ROOT_ID, role, given.source, report, notes=(given.label,))
                self._store.finish(cell.id, node)
        return Ending(DONE)

    async def _reference(self, cell: Cell) -> EvalReport:
        """The report on the task's own model, which has to work."""
        report = await self._evaluator.evaluate(self._root_request(cell))
        check_reference(report)
        return report

    def _winner(self, cell: Cell) -> Node | None:
        """The kernel that a search reports."""
        return winner(Tree(self._store.nodes(cell.id)), self._store.final(cell.id))

    def _has_answered(self, record: RunRecord) -> Callable[[Role], bool]:
        """Whether a role's model has answered anybody under the settings of a run: then what it refuses is a prompt."""

        def has_answered(role: Role) -> bool:
            wanted = record.settings["roles"][role]
            alike = (each.id for each in self._records.values() if each.settings["roles"].get(role) == wanted)
            return any(role in self._store.usage(run_id) for run_id in alike)

        return has_answered

    def _create_all(self) -> None:
        for cell in self._cells:
            rescored = [cell.rescored()] if self._both_scores and cell.kind is Kind.SEARCH else []
            for each in (cell, *rescored):
                if each.id not in self._records:
                    self._records[each.id] = record_of(each, self._device)
                    self._store.create(self._records[each.id])

    def _next(self, queue: Sequence[Cell]) -> int:
        """The place of the next cell: those on tasks where something faulted wait until the others are through."""
        return next((place for place, cell in enumerate(queue) if cell.task.name not in self._troubled), 0)

    def _note_ending(self, cell: Cell, ending: Ending) -> None:
        self._store.end(cell.id, ending)
        self._endings[cell.id] = ending

    def _note_fault(self, cell: Cell, error: StarkError) -> None:
        self.fault = error
        self._faults.add(cell.task.name)
        self._troubled.add(cell.task.name)
        if len(self._faults) >= FAULTS_IN_A_ROW:
            self.stop(f"Stopping after {FAULTS_IN_A_ROW} faults in a row", "Ctrl-C twice")

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
