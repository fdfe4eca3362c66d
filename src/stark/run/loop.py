"""The loop: ``ask -> attempt -> tell`` until the budget is spent.

Only the run writes the tree and the store; attempts run as tasks in parallel and land one by one. Every reply is
stored before it is parsed, so a killed run resumes where it was.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from stark.core.errors import DegenerateTask, PromptRefused, StarkError, UsageError
from stark.core.interfaces import Evaluator, Listener, Store
from stark.core.records import Ending, EndReason, EventKind, InFlight, RunRecord, Ticket, TicketRecord
from stark.core.settings import Settings
from stark.core.steps import Step, Work
from stark.core.tree import ROOT_ID, Attempt, Node, Role, Tree, attempts_of
from stark.evaluation.confirmation import find_winner
from stark.evaluation.requests import check_reference
from stark.run.attempt_context import CandidateEvaluator, JournalledContext, RunParts
from stark.run.budget import BudgetExhausted, Ledger, RunClock
from stark.run.events import EventSender
from stark.run.final_round import FinalRound
from stark.run.methods import BuiltMethod
from stark.run.result import Result
from stark.search.stops import explain_no_bound, find_stop
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport

EVALUATIONS_OF_A_FINAL = 6  # both scores and the drop-in, each in turns with the reference


@dataclass(frozen=True)
class RunRules:
    """Decisions of the caller about a run that is stopped, extended or refused.

    A run that has to end as if it had never been interrupted or extended sets the first two to False.
    """

    confirm_when_stopped: bool = True
    keep_confirmed: bool = True  # an earlier confirmed winner stays if no faster candidate holds
    is_refusal_final: Callable[[Role], bool] = lambda role: False
    """True if a refused prompt of this role is an unusable reply at once, not after a resume."""


ENDS_EARLY = (None, EndReason.STOPPED, EndReason.BOUND, EndReason.PLATEAU)
HOW_TO_GO_ON = "To go on: stark resume DIR --stop-after 0 --stop-at-bound 0."
DEFAULT_RULES = RunRules()
AS_UNINTERRUPTED = RunRules(confirm_when_stopped=False, keep_confirmed=False)


class Run:
    """A run in progress. ``optimize`` is all of it; with ``ask`` and ``tell`` a caller drives it."""

    def __init__(
        self,
        record: RunRecord,
        settings: Settings,
        store: Store,
        method: BuiltMethod,
        evaluator: Evaluator,
        listener: Listener = lambda event: None,
        rules: RunRules = DEFAULT_RULES,
    ) -> None:
        self.record, self.settings, self.store, self.method, self.rules = record, settings, store, method, rules
        self.tree = Tree(store.nodes(record.id))
        self._interrupted = deque(store.unfinished(record.id))
        self._attempts_with_failed_calls = store.attempts_with_failed_calls(record.id)
        self._seed = f"{settings.seed}/{method.salt}" if method.salt else settings.seed
        self._pending: dict[int, Ticket] = {}
        for ticket in self._interrupted:
            self.tree.begin(ticket.number, ticket.parent_id)
            self._pending[ticket.number] = self._ticket(ticket)
        begun = [ticket.number for ticket in self._interrupted]
        self._next_number = 1 + max([*begun, *(node.id for node in self.tree)], default=ROOT_ID)
        self._begun = len(attempts_of(self.tree)) + len(begun)
        ledger = Ledger(settings.budget, store.spent(record.id))
        self._clock = RunClock(store, record.id, settings.budget.wall_s)
        self._events = EventSender(listener, record.id, lambda: ledger.spent)
        self._evaluator = evaluator
        candidates = CandidateEvaluator(evaluator, record.task, settings, self.tree)
        self._parts = RunParts(record.id, settings.roles, store, method.models, ledger, candidates, self._events)
        self._end: EndReason | None = None
        self._stopped = False
        self._fault: StarkError | None = None

    # -- the three calls ----------------------------------------------------------------------------------------

    def ask(self) -> Ticket | None:
        """Begin the next attempt, or resume an interrupted one. None: wait, or the attempts are used up."""
        record = self._interrupted.popleft() if self._interrupted else self._begin_attempt()
        if record is None:
            return None
        ticket = self._pending[record.number] = self._ticket(record)
        self._events.send(EventKind.BEGUN, record.number, node=ticket.parent, step=Step.PREPARING)
        return ticket

    def _ticket(self, record: TicketRecord) -> Ticket:
        visible = self.tree.at(record.visible)
        return Ticket(record.number, visible[record.parent_id], visible, self._seed, record.in_flight)

    def tell(self, ticket: Ticket, attempt: Attempt) -> Node:
        """Add a finished attempt to the store and to the tree."""
        twin = self.tree.twin(attempt.source) if attempt.source is not None else None
        base_id = ticket.parent.id if attempt.base_id is None else attempt.base_id
        node = Node(ticket.number, base_id, attempt, twin.id if twin else attempt.duplicate_of)
        self._record_node(node)
        return node

    async def optimize(self) -> Result:
        """Run until the attempts are used up, another limit is reached, or ``stop`` is called."""
        await self._evaluate_root_in_time()
        if self.settings.budget.stop_at_bound and (why := explain_no_bound(self.tree)):
            self._events.note(why)
        in_flight: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._stop_early()
                while self._may_ask(len(in_flight)) and (ticket := self.ask()):
                    in_flight.add(asyncio.create_task(self._run_attempt(ticket)))
                if not in_flight:
                    break
                done, in_flight = await asyncio.wait(
                    in_flight, timeout=self._clock.seconds_to_next_check(), return_when=asyncio.FIRST_COMPLETED
                )
                self._clock.tick()
                for task in done:
                    task.result()
                if self._clock.seconds_left() == 0:
                    self._end = self._end or EndReason.WALL_TIME
                    break
        finally:
            await _cancel(in_flight)
            self._clock.store()
        if self._end in ENDS_EARLY and len(attempts_of(self.tree)) >= self.settings.budget.attempts:
            self._end = EndReason.DONE  # a stop during or after the last attempts ends nothing early
        if self._needs_final_round():
            await self._final_round().confirm_winner()
        return self._finish()

    def stop(self) -> None:
        """Begin no further attempt; those in flight land."""
        if not self._stopped:
            self._events.note(
                f"Stopping: attempts in flight are finished first{self._finals_to_come()}. "
                "Ctrl-C once more stops at once."
            )
        self._stopped = True
        self._end = self._end or EndReason.STOPPED

    def _finals_to_come(self) -> str:
        """Say how long the final round will take, if there is one."""
        if not self.tree or not self.settings.evaluation.final or self.tree.best is None:
            return ""
        seconds = EVALUATIONS_OF_A_FINAL * self.tree.root.report.duration_s
        return f", then the best is confirmed, which takes about {max(seconds, 1.0):.0f} s"

    @property
    def has_begun(self) -> bool:
        """True if there is a node to keep."""
        return bool(self.tree)

    # -- their parts --------------------------------------------------------------------------------------------

    async def evaluate_root(self) -> None:
        """Evaluate the first nodes: the reference, and a kernel that the user gave."""
        if ROOT_ID not in self.tree:
            with self._events.evaluating(ROOT_ID, Work.REFERENCE):
                report = await self._parts.evaluator.evaluate_reference()
            check_reference(report)
            if report.degenerate and not self.settings.evaluation.allow_degenerate:
                raise DegenerateTask(report.degenerate)
            self._record_node(Node(ROOT_ID, None, Attempt(Role.REFERENCE, self.record.task.source, report)))
        given = self.record.given
        if given is not None and not any(node.role is Role.GIVEN for node in self.tree):
            number, self._next_number = self._next_number, self._next_number + 1
            with self._events.evaluating(number, Work.GIVEN):
                report = await self._parts.evaluator.evaluate(given)
            self._record_node(Node(number, ROOT_ID, Attempt(Role.GIVEN, given, report)))

    async def _evaluate_root_in_time(self) -> None:
        try:
            async with asyncio.timeout(self._clock.seconds_left()):
                await self.evaluate_root()
        except TimeoutError:
            raise UsageError(
                "The time limit passed before the reference was measured.", "Allow more time with --minutes."
            ) from None

    def context(self, ticket: Ticket) -> JournalledContext:
        """Return the context of an attempt, for its workflow."""
        return JournalledContext(ticket.number, self._parts)

    def _begin_attempt(self) -> TicketRecord | None:
        if self._begun >= self.settings.budget.attempts:
            return None
        number = self._next_number
        parent = self.method.policy.select(self.tree, Random(f"{self._seed}/{number}/select"))
        if parent is None:
            return None
        if parent.source is None or parent.id not in self.tree:
            raise StarkError(f"The policy chose node {parent.id}, which cannot be built upon.", "Fix the policy.")
        record = TicketRecord(number, parent.id, len(self.tree), self._in_flight())
        self.store.begin(self.record.id, record)
        self.tree.begin(number, parent.id)
        self._next_number, self._begun = number + 1, self._begun + 1
        return record

    def _in_flight(self) -> tuple[InFlight, ...]:
        ideas = self._parts.ideas
        return tuple(
            InFlight(number, ticket.parent.id, ticket.sibling, ideas.get(number, ""))
            for number, ticket in self._pending.items()
        )

    async def _run_attempt(self, ticket: Ticket) -> None:
        """Turn a ticket into a node. An attempt that is cut short stays unfinished in the store, to be resumed."""
        try:
            self.tell(ticket, await self._attempt(ticket))
            return
        except BudgetExhausted as exhausted:
            self._end = self._end or exhausted.limit
        except StarkError as fault:
            self._fault = self._fault or fault
        self._events.send(EventKind.CUT_SHORT, ticket.number)

    async def _attempt(self, ticket: Ticket) -> Attempt:
        """Make one attempt.

        A refused prompt stops the run once, so that the user sees it. If it is refused again after a resume, it is an
        unusable reply, or no resume would ever get past it.
        """
        context = self.context(ticket)
        try:
            return await self.method.workflow.attempt(ticket, context)
        except PromptRefused as refusal:
            again = ticket.number in self._attempts_with_failed_calls
            if context.role is None or not (again or self.rules.is_refusal_final(context.role)):
                raise
            log = f"The model refused the prompt{', as a call failed before' if again else ''}: {refusal.message}"
            return Attempt(context.role, None, EvalReport(Outcome.UNUSABLE_REPLY, log=log), notes=(refusal.message,))

    def _stop_early(self) -> None:
        """Begin no attempt at the bound or on a plateau; those that were interrupted are resumed."""
        reason = find_stop(self.tree, self.settings.budget) if not self._interrupted else None
        if reason and not self._end and self._begun < self.settings.budget.attempts:
            self._end = reason
            self._events.note(f"{reason.meaning.capitalize()}. {HOW_TO_GO_ON}")

    def _may_ask(self, in_flight: int) -> bool:
        return not self._end and not self._fault and in_flight < self.settings.jobs

    def _needs_final_round(self) -> bool:
        goes_on_later = self._end is EndReason.STOPPED and not self.rules.confirm_when_stopped
        return self.settings.evaluation.final and not self._fault and not goes_on_later

    def _final_round(self) -> FinalRound:
        return FinalRound(
            self.record,
            self.settings.evaluation,
            self.store,
            self.tree,
            self._evaluator,
            self._events,
            self.rules.keep_confirmed,
        )

    def _finish(self) -> Result:
        if self._fault:
            raise self._fault
        if not self._end and self._begun < self.settings.budget.attempts:
            raise StarkError(
                f"The policy {self.settings.search.policy} chose no node although no attempt was in flight.",
                "This is a fault of the policy; start a new run with another one.",
            )
        result = self.result()
        self._events.send(EventKind.ENDED, text=result.reason, ending=Ending(result.reason))
        return result

    def result(self) -> Result:
        """Return the result so far."""
        attempts, reason = len(attempts_of(self.tree)), self._end or EndReason.DONE
        final = self.store.final(self.record.id)
        best, spent = find_winner(self.tree, final), self._parts.ledger.spent
        return Result(self.record.id, self.tree.root, best, attempts, spent, reason, final, self._stopped)

    def _record_node(self, node: Node) -> None:
        self.store.finish(self.record.id, node)
        self.tree.add(node)
        self._pending.pop(node.id, None)
        self._events.send(EventKind.LANDED, node.id, node=node)


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
