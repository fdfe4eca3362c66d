"""The one loop: ``ask -> attempt -> tell`` until the budget is spent.

Only the run writes the tree and the store; attempts fly as tasks beside each other and land one by one. Everything an
attempt was told is stored before it is looked at, so a run that is killed goes on where it was.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from random import Random

from stark.core.errors import DegenerateTask, PromptRefused, StarkError, UsageError
from stark.core.interfaces import ChatModel, Evaluator, Listener, Policy, Store, Workflow
from stark.core.records import DONE, STOPPED, Attempt, Event, Final, RunRecord, Ticket, TicketRecord
from stark.core.settings import Settings
from stark.core.tree import ROOT_ID, Node, Role, Tree, attempts_of
from stark.evaluation.confirmation import contenders, hold_final, winner
from stark.evaluation.requests import check_reference, eval_request
from stark.run.attempt_context import RunDesk
from stark.run.budget import BudgetExhausted, Ledger
from stark.run.result import Result
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DEGENERATE, EvalReport
from stark_worker.protocol.request import ALWAYS_MS

CLOCK_S = 5.0  # how much of the time a run has taken may be forgotten when it is killed


class Run:
    """A run in progress. ``optimize`` is all of it; ``ask`` and ``tell`` let something else drive."""

    def __init__(
        self,
        record: RunRecord,
        settings: Settings,
        store: Store,
        policy: Policy,
        workflow: Workflow,
        models: Mapping[Role, ChatModel],
        evaluator: Evaluator,
        listener: Listener = lambda event: None,
        has_answered: Callable[[Role], bool] = lambda role: False,
    ) -> None:
        self._has_answered = has_answered
        self.record, self.store, self.policy, self.workflow = record, store, policy, workflow
        self.models, self.evaluator, self._listener = models, evaluator, listener
        self.settings = settings
        self.tree = Tree(store.nodes(record.id))
        self._interrupted = deque(store.unfinished(record.id))
        self._failed_before = store.given_back(record.id)
        for ticket in self._interrupted:
            self.tree.begin(ticket.number, ticket.parent_id)
        begun = [ticket.number for ticket in self._interrupted]
        self._next_number = 1 + max([*begun, *(node.id for node in self.tree)], default=ROOT_ID)
        self._begun = len(attempts_of(self.tree)) + len(begun)
        self.ledger = Ledger(self.settings.budget, store.spent(record.id))
        self._clocked = time.monotonic()
        self._judging: dict[str, asyncio.Lock] = {}  # by source, so that twins in flight are evaluated once
        self._judged: dict[str, EvalReport] = {}  # reports of candidates that have not landed yet
        self._benched = bool(record.labels)  # has to end as if it had never been interrupted or extended
        self._end: str | None = None
        self._stopped = False
        self._fault: StarkError | None = None

    # -- the three calls ----------------------------------------------------------------------------------------

    def ask(self) -> Ticket | None:
        """Begin the next attempt, or take up one that was interrupted. None: wait, or the attempts are used up."""
        if self._interrupted:
            record = self._interrupted.popleft()
        elif self._begun >= self.settings.budget.attempts:
            return None
        else:
            number = self._next_number
            parent = self.policy.select(self.tree, Random(f"{self.settings.seed}/{number}/select"))
            if parent is None:
                return None
            if parent.source is None or parent.id not in self.tree:
                raise StarkError(f"The policy chose node {parent.id}, which cannot be built upon.", "Fix the policy.")
            record = TicketRecord(number, parent.id, visible=len(self.tree))
            self.store.begin(self.record.id, record)
            self.tree.begin(number, parent.id)
            self._next_number, self._begun = number + 1, self._begun + 1
        visible = self.tree.at(record.visible)
        self._say("begun", record.number, node=visible[record.parent_id])
        return Ticket(record.number, visible[record.parent_id], visible, self.settings.seed)

    def tell(self, ticket: Ticket, attempt: Attempt) -> Node:
        """Add a finished attempt to the store and to the tree."""
        twin = self.tree.twin(attempt.source) if attempt.source is not None else None
        node = Node(
            id=ticket.number,
            parent_id=ticket.parent.id,
            role=attempt.role,
            source=attempt.source,
            report=attempt.report,
            plan=attempt.plan,
            explanation=attempt.explanation,
            outside_share=attempt.outside_share,
            same_as=twin.id if twin else None,
            notes=attempt.notes,
        )
        self._land(node)
        self._judged.pop(node.source or "", None)
        return node

    async def optimize(self) -> Result:
        """Run until the attempts are used up, another limit is reached, or somebody stops it."""
        await self._plant_in_time()
        flying: set[asyncio.Task[None]] = set()
        try:
            while True:
                while self._may_ask(len(flying)) and (ticket := self.ask()):
                    flying.add(asyncio.create_task(self._fly(ticket)))
                if not flying:
                    break
                done, flying = await asyncio.wait(
                    flying, timeout=self._until_next_look(), return_when=asyncio.FIRST_COMPLETED
                )
                self._tick()
                for task in done:
                    task.result()
                if self._seconds_left() == 0:
                    self._end = self._end or "wall time"
                    break
        finally:
            await _cancel(flying)
            self._clock()
        if self._end in (None, STOPPED) and len(attempts_of(self.tree)) >= self.settings.budget.attempts:
            self._end = DONE  # whoever stops it now, or did so when the last were in flight, ends nothing early
        if self._is_final():
            await self._hold_finals()
        return self._finish()

    def stop(self) -> None:
        """Begin no further attempt; those in flight land."""
        if not self._stopped:
            self._say("note", text="Stopping: what is in flight is finished first. Once more stops at once.")
        self._stopped = True
        self._end = self._end or STOPPED

    @property
    def begun(self) -> bool:
        """Whether there is a node to keep."""
        return bool(self.tree)

    # -- what they are made of ------------------------------------------------------------------------------------

    async def plant(self) -> None:
        """Evaluate the first nodes: the reference, and a kernel the user brought."""
        if ROOT_ID not in self.tree:
            source = self.record.task.source
            report = await self.evaluate(source, entry="Model")
            check_reference(report)
            if DEGENERATE in report.checks and not self.settings.evaluation.allow_degenerate:
                raise DegenerateTask(report.checks[DEGENERATE])
            self._land(Node(ROOT_ID, None, Role.REFERENCE, source, report))
        given = self.record.given
        if given is not None and not any(node.role is Role.GIVEN for node in self.tree):
            number, self._next_number = self._next_number, self._next_number + 1
            self._land(Node(number, ROOT_ID, Role.GIVEN, given, await self.evaluate(given)))

    async def _plant_in_time(self) -> None:
        try:
            async with asyncio.timeout(self._seconds_left()):
                await self.plant()
        except TimeoutError:
            raise UsageError(
                "The limit on time passed before the first nodes were measured.", "Allow more with --minutes."
            ) from None

    def desk(self, ticket: Ticket) -> RunDesk:
        """What the workflow may use during this attempt."""
        parts = (self.record.id, self.settings.roles, self.store, self.models, self.ledger)
        return RunDesk(ticket.number, *parts, judge=self.judge, say=self._say)

    async def judge(self, source: str) -> EvalReport:
        """A candidate's report: the one an identical candidate has, or a new one."""
        async with self._judging.setdefault(source, asyncio.Lock()):
            twin = self.tree.twin(source)
            if twin is None and source not in self._judged:
                self._judged[source] = await self.evaluate(source)
            return twin.report if twin else self._judged[source]

    async def evaluate(self, source: str, entry: str = "ModelNew") -> EvalReport:
        """One candidate through the evaluator, with a profile if it becomes a leader."""
        request = eval_request(self.record.task, source, self.settings.evaluation, entry)
        return await self.evaluator.evaluate(replace(request, profile_below_ms=self._leading_ms()))

    def _leading_ms(self) -> float:
        """What a candidate has to be faster than to be a leader."""
        windows = self.settings.windows
        if not windows.profile:
            return 0.0
        ahead = [node.runtime_ms for node in islice(self.tree.ranked(), windows.leaders + 1)]
        return ahead[-1] or 0.0 if len(ahead) > windows.leaders else ALWAYS_MS

    def _is_final(self) -> bool:
        """Whether the winner is to be confirmed now; in a benchmark not of a run that goes on later."""
        stopped = self._benched and self._end == STOPPED
        return self.settings.evaluation.final and not self._fault and not stopped

    async def _hold_finals(self) -> None:
        """Have the fastest candidates confirmed until one holds: where none does, the one that held before a run was
        extended. Each has one final, or one that fails now and then would be tried until it passes. The last word is
        stored last: after what does not hold comes what held before, whenever the run is killed."""
        finals, last = self.store.finals(self.record.id), None
        before = None if self._benched else next((final for final in reversed(finals) if final.holds), None)
        known = {final.node_id: final for final in finals}
        for node in self._contenders(before):
            last = known.get(node.id) or await self._hold_final(node, before)
            if last.holds:
                break
            self._say("note", text=f"#{node.id} does not hold: {last.report.outcome}. {last.report.log[:300]}")
        if last is not None and last != self.store.final(self.record.id):
            self.store.confirm(self.record.id, last)

    async def _hold_final(self, node: Node, before: Final | None) -> Final:
        assert node.source is not None
        self._say("note", text=f"#{node.id} is built the stock way and judged anew by both scores.")
        request = eval_request(self.record.task, node.source, self.settings.evaluation)
        final = await hold_final(self.evaluator, request, node.id)
        self.store.confirm(self.record.id, final)
        if before is not None and not final.holds:
            self.store.confirm(self.record.id, before)
        return final

    def _contenders(self, before: Final | None) -> list[Node]:
        """The fastest few, and after them the one that was confirmed before they were there."""
        fastest = contenders(self.tree)
        if before is None or any(node.id == before.node_id for node in fastest):
            return fastest
        return [*fastest, self.tree[before.node_id]]

    async def _fly(self, ticket: Ticket) -> None:
        """One attempt from ticket to node. What stops it short leaves it unfinished in the store, to be resumed."""
        try:
            self.tell(ticket, await self._attempt(ticket))
        except BudgetExhausted as exhausted:
            self._end = self._end or exhausted.limit
        except StarkError as fault:
            self._fault = self._fault or fault

    async def _attempt(self, ticket: Ticket) -> Attempt:
        """One attempt. A prompt that is refused stops the run once, so that somebody looks; when it is refused after a
        resume, and a call of the attempt had failed before, it is an unusable reply, or no resume would ever get past
        it. So it is at once in a benchmark where the model has answered others: then nobody need look."""
        desk = self.desk(ticket)
        try:
            return await self.workflow.attempt(ticket, desk)
        except PromptRefused as refusal:
            again = ticket.number in self._failed_before
            if desk.role is None or not (again or self._has_answered(desk.role)):
                raise
            log = f"The model refused the prompt{', as a call failed before' if again else ''}: {refusal.message}"
            return Attempt(desk.role, None, EvalReport(Outcome.UNUSABLE_REPLY, log=log), notes=(refusal.message,))

    def _may_ask(self, flying: int) -> bool:
        return not self._end and not self._fault and flying < self.settings.jobs

    def _finish(self) -> Result:
        if self._fault:
            raise self._fault
        if not self._end and self._begun < self.settings.budget.attempts:
            raise StarkError(
                f"The policy {self.settings.search.policy} chose no node although nothing was in flight.",
                "This is a fault of the policy; start a new run with another one.",
            )
        result = self.result()
        self._say("ended", text=result.reason)
        return result

    def result(self) -> Result:
        """What has been found so far."""
        attempts, reason = len(attempts_of(self.tree)), self._end or DONE
        final = self.store.final(self.record.id)
        best = winner(self.tree, final)
        return Result(self.record.id, self.tree.root, best, attempts, self.ledger.spent, reason, final, self._stopped)

    def _land(self, node: Node) -> None:
        self.store.finish(self.record.id, node)
        self.tree.add(node)
        self._say("landed", node.id, node=node)

    def _say(self, kind: str, number: int | None = None, node: Node | None = None, text: str = "") -> None:
        self._listener(Event(kind, number, node, text, self.ledger.spent))  # type: ignore[arg-type]

    def _tick(self) -> None:
        """Write down how much time has passed, but not for every attempt of a fast run."""
        if time.monotonic() - self._clocked >= CLOCK_S:
            self._clock()

    def _clock(self) -> None:
        now = time.monotonic()
        self.store.clock(self.record.id, now - self._clocked)
        self._clocked = now

    def _until_next_look(self) -> float:
        left = self._seconds_left()
        return CLOCK_S if left is None else min(CLOCK_S, left)

    def _seconds_left(self) -> float | None:
        limit = self.settings.budget.wall_s
        if limit is None:
            return None
        taken = self.store.seconds(self.record.id) + time.monotonic() - self._clocked
        return max(0.0, limit - taken)


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
