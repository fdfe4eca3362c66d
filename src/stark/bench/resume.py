"""The stored part of a benchmark: which cells are done, and which have more to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stark.bench.cell import Cell, make_run_record
from stark.bench.compatibility import changed_settings, check_rules, check_settings, check_sources
from stark.core.records import Ending, EndReason, Kind, RunRecord
from stark.core.tree import Role, Tree, attempts_of
from stark.evaluation.confirmation import find_winner
from stark.run.assembly import check_attempts, check_device
from stark.store.sqlite import SqliteStore
from stark_worker.protocol.report import DeviceFacts, EvalReport

TRY_AGAIN = frozenset({EndReason.BROKEN_TASK, EndReason.FAULT, EndReason.STOPPED})
UNUSABLE_TASK = frozenset({EndReason.DEGENERATE_TASK, EndReason.BROKEN_TASK})


class StoredCells:
    """The cells of a grid as one store holds them. ``made`` counts the finished attempts by cell id."""

    def __init__(self, cells: Sequence[Cell], store: SqliteStore, device: DeviceFacts, both_scores: bool) -> None:
        self._cells, self._store, self._device, self._both_scores = cells, store, device, both_scores
        self._records = {record.id: record for record in store.runs()}
        self._endings = {run_id: ending for run_id in self._records if (ending := store.ending(run_id))}
        self._has_unknown_price = any(map(self._lacks_price, self._records))
        self.made = {cell.id: self._count_attempts(cell) for cell in cells}
        self._check()
        for cell in cells:  # only after every check, so that a refused grid changes nothing
            self._take_over(cell)

    def record(self, cell: Cell) -> RunRecord:
        return self._records[cell.id]

    def all_cells(self) -> list[Cell]:
        """Return the cells of the grid, and those of winners by the other score."""
        both = [(cell, self._both_scores and cell.kind is Kind.SEARCH) for cell in self._cells]
        return [each for cell, twice in both for each in ((cell, cell.rescored()) if twice else (cell,))]

    def create_missing(self) -> None:
        """Store every cell that is new, so that a report on half a grid knows the whole grid."""
        for cell in self.all_cells():
            if cell.id not in self._records:
                self._records[cell.id] = make_run_record(cell, self._device)
                self._store.create(self._records[cell.id])

    def end(self, cell: Cell, ending: Ending) -> None:
        """Store why a cell ended."""
        self._store.end(cell.id, ending)
        self._endings[cell.id] = ending
        self._has_unknown_price = self._has_unknown_price or self._lacks_price(cell.id)

    def ending(self, cell: Cell) -> Ending | None:
        """Return the ending of a cell, or None if it has more to do."""
        ending = self._endings.get(cell.id)
        return None if ending is None or ending.reason in TRY_AGAIN else ending

    def has_ended(self, cell: Cell) -> bool:
        return self.ending(cell) is not None

    def is_settled(self, cell: Cell) -> bool:
        """True if neither the cell nor its winner has more to do."""
        return self.has_ended(cell) and self.cell_to_rescore(cell) is None

    def cell_to_rescore(self, cell: Cell) -> Cell | None:
        """Return the winner's cell if the other score is still to judge it.

        A store that has winners by both scores keeps both up to date.
        """
        ending, rescored = self.ending(cell), cell.rescored()
        if cell.kind is not Kind.SEARCH or ending is None or ending.reason == EndReason.DEGENERATE_TASK:
            return None
        if rescored.id not in self._records and not self._both_scores:
            return None
        best = find_winner(Tree(self._store.nodes(cell.id)), self._store.final(cell.id))
        if self.has_ended(rescored) and (best is None or best.id in self.node_numbers(rescored)):
            return None
        return cell.rescored(best.source, best.id) if best else rescored

    def node_numbers(self, cell: Cell) -> set[int]:
        """Return the numbers of the nodes that a cell has in the store."""
        return {each.id for each in self._store.judgements(cell.id)}

    def reference_report(self, cell: Cell) -> EvalReport | None:
        """Return the stored report on the task's own model."""
        if cell.id not in self._records or not self._store.judgements(cell.id):
            return None
        return self._store.nodes(cell.id)[0].report  # the root is always the first node

    def faulted_tasks(self) -> set[str]:
        """Return the tasks whose last ending is a fault of the machinery."""
        ended = (record for record in self._records.values() if record.id in self._endings)
        return {record.task.name for record in ended if self._endings[record.id].reason == EndReason.FAULT}

    def has_only_unusable_tasks(self) -> bool:
        """True if every task is broken or tests nothing. Baselines do not count."""
        endings = [self._endings.get(cell.id) for cell in self._cells if cell.kind is not Kind.BASELINES]
        return all(ending is not None and ending.reason in UNUSABLE_TASK for ending in endings)

    def spent_usd(self) -> float | None:
        """Return the US dollars spent, or None if the price of any call of a run that has ended is not known."""
        if self._has_unknown_price:
            return None
        return sum(self._store.spent(run_id).usd for run_id in self._records)

    def has_answered(self, cell: Cell) -> Callable[[Role], bool]:
        """Return a check: has a role's model answered any run with the same settings of that role?"""
        roles = self._records[cell.id].settings["roles"]

        def has_answered(role: Role) -> bool:
            same = (each.id for each in self._records.values() if each.settings["roles"].get(role) == roles[role])
            return any(role in self._store.usage(run_id) for run_id in same)

        return has_answered

    def _lacks_price(self, run_id: str) -> bool:
        return any(each.usd is None for each in self._store.usage(run_id).values())

    def _count_attempts(self, cell: Cell) -> int:
        if cell.kind is not Kind.SEARCH or cell.id not in self._records:
            return 0
        return len(attempts_of(self._store.judgements(cell.id)))

    def _check(self) -> None:
        """Refuse a store that holds another experiment."""
        for record in self._records.values():
            check_device(record.device, self._device)
        check_rules(self._cells, self._records.values())
        for cell in self._cells:
            if cell.id not in self._records:
                continue
            check_settings(cell, self._records[cell.id])
            if cell.kind is Kind.SEARCH:
                begun = self.made[cell.id] + len(self._store.unfinished(cell.id))
                check_attempts(cell.id, cell.settings, begun)
            if cell.kind is Kind.JUDGED:
                check_sources(cell, self._store.nodes(cell.id))

    def _take_over(self, cell: Cell) -> None:
        """Give a stored run its new budget.

        Reopen it before that: a killed process must not leave an ending that belongs to the old budget.
        """
        record = self._records.get(cell.id)
        if record is None:
            return
        changed = {group for group, _ in changed_settings(cell, record)}
        if self._has_more_to_do(cell, changed):
            for each in self._stored_variants(cell):
                self.end(each, Ending(EndReason.STOPPED, "There is more to do now."))
        if changed:
            for each in self._stored_variants(cell):
                self._amend(each)

    def _has_more_to_do(self, cell: Cell, changed: set[str]) -> bool:
        """True if an ended run has new attempts or kernels to do, or a limit that has moved."""
        ending = self._endings.get(cell.id)
        if ending is None or ending.reason in TRY_AGAIN | {EndReason.DEGENERATE_TASK}:
            return False
        if cell.kind is Kind.JUDGED:
            return not {given.number for given in cell.given} <= self.node_numbers(cell)
        if ending.reason == EndReason.DONE:
            return cell.kind is Kind.SEARCH and self.made[cell.id] < cell.settings.budget.attempts
        return "budget" in changed

    def _stored_variants(self, cell: Cell) -> list[Cell]:
        """Return the cell and, for a search, its winner by the other score, if they are stored."""
        both = [cell, cell.rescored()] if cell.kind is Kind.SEARCH else [cell]
        return [each for each in both if each.id in self._records]

    def _amend(self, cell: Cell) -> None:
        settings = cell.settings.model_dump(mode="json")
        self._store.amend(cell.id, settings)
        self._records[cell.id] = replace(self._records[cell.id], settings=settings)
