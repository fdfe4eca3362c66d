"""The final round: the fastest candidates are confirmed, one after the other, until one holds."""

from __future__ import annotations

from stark.core.interfaces import Evaluator, Store
from stark.core.records import Final, RunRecord
from stark.core.settings import EvaluationSettings
from stark.core.tree import Node, Tree
from stark.evaluation.confirmation import confirm_candidate, list_contenders
from stark.evaluation.requests import make_request
from stark.run.events import EventSender

MAX_LOG_CHARACTERS = 300  # of a refuted contender's log, in the note about it


class FinalRound:
    """Confirms the winner of a run. Each contender has one final only, or an unreliable one would be tried until it
    passes.

    With ``keep_confirmed``, a winner that was confirmed before the run was extended stays if no faster one holds.
    """

    def __init__(
        self,
        record: RunRecord,
        settings: EvaluationSettings,
        store: Store,
        tree: Tree,
        evaluator: Evaluator,
        events: EventSender,
        keep_confirmed: bool,
    ) -> None:
        self._record, self._settings, self._store, self._tree = record, settings, store, tree
        self._evaluator, self._events, self._keep_confirmed = evaluator, events, keep_confirmed

    async def confirm_winner(self) -> None:
        finals, last = self._store.finals(self._record.id), None
        held = [final for final in finals if final.holds]
        confirmed = held[-1] if held and self._keep_confirmed else None
        known = {final.node_id: final for final in finals}
        for node in self._contenders(confirmed):
            last = known.get(node.id) or await self._confirm(node, confirmed)
            if last.holds:
                break
            self._events.note(
                f"#{node.id} failed its final check: {last.report.outcome}. {last.report.log[:MAX_LOG_CHARACTERS]}"
            )
        if last is not None and last != self._store.final(self._record.id):
            self._store.confirm(self._record.id, last)

    async def _confirm(self, node: Node, confirmed: Final | None) -> Final:
        assert node.source is not None
        self._events.note(f"Confirming #{node.id}: rebuilding it with torch's own toolchain and measuring it again.")
        request = make_request(self._record.task, node.source, self._settings)
        final = await confirm_candidate(self._evaluator, request, node.id)
        self._store.confirm(self._record.id, final)
        if confirmed is not None and not final.holds:
            # Store the confirmed winner last, so a killed run never ends on a refuted one.
            self._store.confirm(self._record.id, confirmed)
        return final

    def _contenders(self, confirmed: Final | None) -> list[Node]:
        """Return the fastest few, then the winner that was confirmed before they existed."""
        fastest = list_contenders(self._tree)
        if confirmed is None or any(node.id == confirmed.node_id for node in fastest):
            return fastest
        return [*fastest, self._tree[confirmed.node_id]]
