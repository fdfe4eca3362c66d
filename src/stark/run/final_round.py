"""The final round: the fastest candidates are confirmed, one after the other, until one holds.

The file that leaves STARK is judged too: it is built, checked and timed like a candidate.
"""

from __future__ import annotations

from dataclasses import replace

from stark.artefact.drop_in import Winner, format_drop_in
from stark.core.interfaces import Evaluator, Store
from stark.core.records import DropIn, EventKind, Final, RunRecord, judged_source
from stark.core.settings import EvaluationSettings
from stark.core.steps import Step, Work
from stark.core.tree import Node, Tree
from stark.evaluation.confirmation import confirm_candidate, list_contenders
from stark.evaluation.requests import make_request
from stark.run.events import EventSender
from stark_worker.protocol.request import Build, EvalRequest, Score

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
        self._events.send(EventKind.CONFIRMING, node.id, work=Work.FINAL, step=Step.PREPARING)
        request = make_request(self._record.task, node.source, self._settings)
        with self._events.evaluating(node.id, Work.FINAL):
            final = await confirm_candidate(self._evaluator, request, node.id)
            final = await with_drop_in(self._evaluator, request, self._record.task.name, final)
        self._store.confirm(self._record.id, final)
        self._events.send(EventKind.CONFIRMED, node.id, work=Work.FINAL, final=final)
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


async def with_drop_in(evaluator: Evaluator, request: EvalRequest, task_name: str, final: Final) -> Final:
    """Return the final with the drop-in of a winner that holds, unless none can be made."""
    labels = final.verified.labels
    interface = labels.interface if labels else None
    if labels is None or interface is None or not interface.takes_weights or not final.holds:
        return final
    sources = (request.candidate_source, request.task_source)
    winner = Winner(task_name, *sources, request.target, request.precision, interface, labels.other_shapes)
    source = format_drop_in(winner)
    judged = replace(
        request,
        candidate_source=judged_source(source),
        build=Build.STOCK,
        opponent_source=request.task_source,
        score=Score.VERIFIED,
        with_labels=True,
    )
    return replace(final, drop_in=DropIn(source, await evaluator.evaluate(judged)))
