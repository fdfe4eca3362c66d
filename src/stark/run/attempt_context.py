"""The context of one attempt: model calls that are replayed from the journal, charged and kept; and the evaluator."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice

from stark.core.chat import Message, Reply, ReplyForm
from stark.core.errors import ModelRefused, ModelUnavailable, ReplyLost
from stark.core.interfaces import AttemptContext, ChatModel, Evaluator, PlacedModel, Store
from stark.core.records import Call, EventKind, Spend
from stark.core.settings import Roles, RoleSettings, Settings
from stark.core.steps import STEP_OF_ROLE, Step
from stark.core.task import Task
from stark.core.tree import Role, Tree
from stark.evaluation.requests import make_request
from stark.evaluation.steps import report_step
from stark.run.budget import Ledger, worst_case
from stark.run.events import EventSender
from stark.run.methods import find_method
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import ALWAYS_MS, Entry


class CandidateEvaluator:
    """The evaluator of one run's candidates. Identical sources are evaluated once."""

    def __init__(self, evaluator: Evaluator, task: Task, settings: Settings, tree: Tree) -> None:
        self._evaluator, self._task, self._settings, self._tree = evaluator, task, settings, tree
        self._locks: dict[str, asyncio.Lock] = {}  # by source, so that twins in flight are evaluated once
        self._reports: dict[str, EvalReport] = {}  # by source, of candidates that may not be in the tree yet

    async def evaluate(self, source: str) -> EvalReport:
        """Return the report of an identical candidate, or a new one."""
        lock = self._locks.setdefault(source, asyncio.Lock())
        if lock.locked():
            report_step(Step.SHARING)
        async with lock:
            if twin := self._tree.twin(source):
                return twin.report
            if source not in self._reports:
                report = await self._evaluate(source, Entry.CANDIDATE)
                self._reports[source] = await self._time_in_turns(source) if self._leads(report) else report
            return self._reports[source]

    async def evaluate_reference(self) -> EvalReport:
        """Return a report on the task's own model."""
        return await self._evaluate(self._task.source, Entry.REFERENCE)

    async def _evaluate(self, source: str, entry: Entry) -> EvalReport:
        request = make_request(self._task, source, self._settings.evaluation, entry)
        below_ms = self._profile_below_ms()
        return await self._evaluator.evaluate(replace(request, profile_below_ms=below_ms, best_ms=self._best_ms))

    @property
    def _best_ms(self) -> float | None:
        best = self._tree.best
        return best.runtime_ms if best else None

    def _leads(self, report: EvalReport) -> bool:
        """True if it is faster than all before it, and was not timed in turns with the reference yet."""
        best_ms = self._best_ms
        is_fastest = report.timing is not None and (best_ms is None or report.timing.median_ms < best_ms)
        return is_fastest and report.opponent is None

    async def _time_in_turns(self, source: str) -> EvalReport:
        """Judge a new leader again, in turns with the reference: a machine's speed changes within minutes."""
        request = make_request(self._task, source, self._settings.evaluation)
        in_turns = replace(request, opponent_source=self._task.source, profile_below_ms=self._profile_below_ms())
        return await self._evaluator.evaluate(in_turns)

    def _profile_below_ms(self) -> float:
        """Return the time below which a candidate gets a profile: that of the slowest leader, unless all get one."""
        windows = self._settings.windows
        if not windows.profile:
            return 0.0
        if find_method(self._settings.method).profiles_all:
            return ALWAYS_MS
        ahead = [node.runtime_ms for node in islice(self._tree.ranked(), windows.leaders + 1)]
        return ahead[-1] or 0.0 if len(ahead) > windows.leaders else ALWAYS_MS


@dataclass(frozen=True)
class RunParts:
    """The parts of a run that its attempts share."""

    run_id: str
    roles: Roles
    store: Store
    models: Mapping[Role, ChatModel]
    ledger: Ledger
    evaluator: CandidateEvaluator
    events: EventSender
    ideas: dict[int, str] = field(default_factory=dict)  # of attempts in flight, by number


class JournalledContext(AttemptContext):
    """The context of the attempt with this number. Replies in the journal are returned before any model is called."""

    def __init__(self, number: int, run: RunParts) -> None:
        self._number, self._run = number, run
        self._journal = deque(run.store.calls(run.run_id, number))
        self._asked = 0
        self._asked_of: Counter[Role] = Counter()
        self.role: Role | None = None  # of the last call

    def takes_temperature(self, role: Role) -> bool:
        return self._run.models[role].takes_temperature

    async def ask(self, role: Role, messages: Sequence[Message], form: ReplyForm, window: Iterable[int]) -> Reply:
        index, self._asked, self.role = self._asked, self._asked + 1, role
        self._asked_of[role] += 1
        if self._journal:
            return self._journal.popleft().reply
        for tries_left in range(self._settings(role).retries, -1, -1):
            try:
                return await self._call(role, messages, form, tuple(window), index)
            except ReplyLost:
                if not tries_left:
                    raise
                self._note(f"#{self._number}: the {role} agent's reply was lost; asking again.")
        raise AssertionError("unreachable")

    def announce(self, idea: str) -> None:
        self._run.ideas[self._number] = idea

    async def evaluate(self, source: str) -> EvalReport:
        with self._run.events.evaluating(self._number):
            return await self._run.evaluator.evaluate(source)

    async def _call(
        self, role: Role, messages: Sequence[Message], form: ReplyForm, window: tuple[int, ...], index: int
    ) -> Reply:
        """Call a model: reserve the worst case, keep the reply before it is parsed, give the rest back."""
        store, model = self._run.store, self._model(role)
        worst = worst_case(model, self._settings(role), messages, form)
        await self._run.ledger.reserve(worst)
        actual = Spend()
        try:
            self._run.events.send(EventKind.ASKING, self._number, text=role, step=STEP_OF_ROLE[role])
            reservation = store.reserve(self._run.run_id, self._number, index, worst)
            actual = worst  # a call that never ends stays spent in full
            started, began = datetime.now(UTC).isoformat(), time.monotonic()
            reply = await model.reply(messages, form)
            actual = Spend(reply.usage.total, reply.cost_usd or 0.0)
        except (ModelRefused, ModelUnavailable) as fault:
            if not isinstance(fault, ReplyLost):
                store.release(reservation)
                actual = Spend()
            raise
        finally:
            self._run.ledger.settle(worst, actual)
        self._warn_if_above(worst, actual, model.name)
        content = (tuple(messages), form.name, window, reply, started, time.monotonic() - began)
        store.journal(self._run.run_id, reservation, Call(self._number, index, role, model.name, *content))
        return reply

    def _warn_if_above(self, worst: Spend, actual: Spend, model: str) -> None:
        if actual.tokens > worst.tokens:
            self._note(
                f"{model} charged {actual.tokens:,} tokens, more than the {worst.tokens:,} that were reserved. "
                "The limit on tokens cannot hold with this model."
            )

    def _model(self, role: Role) -> ChatModel:
        model = self._run.models[role]
        return model.at(self._number, self._asked_of[role] - 1) if isinstance(model, PlacedModel) else model

    def _settings(self, role: Role) -> RoleSettings:
        settings: RoleSettings = getattr(self._run.roles, role)
        return settings

    def _note(self, text: str) -> None:
        self._run.events.note(text, self._number)
