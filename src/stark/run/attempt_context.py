"""One attempt's way to the models and the evaluator: replayed from the journal, paid for, and kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from stark.core.chat import Message, Reply, ReplyForm
from stark.core.errors import ModelRefused, ModelUnavailable, ReplyLost
from stark.core.interfaces import ChatModel, Desk, Store
from stark.core.records import Call, Spend
from stark.core.settings import Roles, RoleSettings
from stark.core.tree import Role
from stark.run.budget import Ledger, worst_case
from stark_worker.protocol.report import EvalReport


class Say(Protocol):
    """Tells whoever watches the run."""

    def __call__(self, kind: str, number: int, *, text: str = "") -> None: ...


class RunDesk(Desk):
    """The desk of the attempt with this number."""

    def __init__(
        self,
        number: int,
        run_id: str,
        roles: Roles,
        store: Store,
        models: Mapping[Role, ChatModel],
        ledger: Ledger,
        judge: Callable[[str], Awaitable[EvalReport]],
        say: Say,
    ) -> None:
        self._number, self._run_id, self._roles, self._store = number, run_id, roles, store
        self._models, self._ledger, self._judge, self._say = models, ledger, judge, say
        self._journal = deque(store.calls(run_id, number))
        self._asked = 0
        self.role: Role | None = None  # who was asked last

    def takes_temperature(self, role: Role) -> bool:
        return self._models[role].takes_temperature

    async def ask(self, role: Role, messages: Sequence[Message], form: ReplyForm, window: Iterable[int]) -> Reply:
        index, self._asked, self.role = self._asked, self._asked + 1, role
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

    async def _call(
        self, role: Role, messages: Sequence[Message], form: ReplyForm, window: tuple[int, ...], index: int
    ) -> Reply:
        """One call: its worst case is set aside, the reply is kept before anybody looks into it, the rest goes back."""
        model = self._models[role]
        worst = worst_case(model, self._settings(role), messages, form)
        await self._ledger.reserve(worst)
        actual = Spend()
        try:
            self._say("asking", self._number, text=role)
            reservation = self._store.reserve(self._run_id, self._number, index, worst)
            actual = worst  # a call whose end nobody knows stays spent in full
            started, began = datetime.now(UTC).isoformat(), time.monotonic()
            reply = await model.reply(messages, form)
            actual = Spend(reply.usage.total, reply.cost_usd or 0.0)
        except (ModelRefused, ModelUnavailable) as fault:
            if not isinstance(fault, ReplyLost):
                self._store.release(reservation)
                actual = Spend()
            raise
        finally:
            self._ledger.settle(worst, actual)
        if actual.tokens > worst.tokens:
            self._note(
                f"{model.name} charged {actual.tokens:,} tokens where {worst.tokens:,} were its most; the limit on "
                "tokens cannot hold with it."
            )
        said = (tuple(messages), form.name, window, reply, started, time.monotonic() - began)
        self._store.journal(self._run_id, reservation, Call(self._number, index, role, model.name, *said))
        return reply

    async def evaluate(self, source: str) -> EvalReport:
        self._say("evaluating", self._number)
        return await self._judge(source)

    def _settings(self, role: Role) -> RoleSettings:
        settings: RoleSettings = getattr(self._roles, role)
        return settings

    def _note(self, text: str) -> None:
        self._say("note", self._number, text=text)
