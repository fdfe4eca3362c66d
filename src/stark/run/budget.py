"""The budget of a run: money, tokens and time.

A call reserves its worst case first, so that calls in flight never exceed a limit together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from stark.core.chat import Message, ReplyForm, Usage
from stark.core.interfaces import ChatModel, Store
from stark.core.records import EndReason, Spend
from stark.core.settings import BudgetSettings, RoleSettings

ENVELOPE_TOKENS = 1_024  # what a provider may add around a prompt: chat template, tool preamble
CLOCK_S = 30.0  # time between two entries of the clock, which a killed run loses; each is a write to the disk


class BudgetExhausted(Exception):
    """Not a fault: the run ends here and can be extended."""

    def __init__(self, limit: EndReason) -> None:
        super().__init__(limit)
        self.limit = limit


class Ledger:
    """Keeps spent and reserved amounts within the limits."""

    def __init__(self, limits: BudgetSettings, spent: Spend) -> None:
        self._limits = limits
        self._spent = spent
        self._reserved: list[Spend] = []
        self._settled = asyncio.Event()

    @property
    def spent(self) -> Spend:
        return self._spent

    async def reserve(self, worst: Spend) -> None:
        """Reserve an amount. Wait while calls in flight may still give a part of theirs back."""
        while limit := self._exceeded_limit(worst):
            if not self._reserved:
                raise BudgetExhausted(limit)
            self._settled.clear()
            await self._settled.wait()
        self._reserved.append(worst)

    def settle(self, worst: Spend, actual: Spend) -> None:
        """Replace a reserved amount by the actual one."""
        self._reserved.remove(worst)
        self._spent = self._spent + actual
        self._settled.set()

    def _exceeded_limit(self, worst: Spend) -> EndReason | None:
        total = sum(self._reserved, self._spent + worst)
        if self._limits.tokens is not None and total.tokens > self._limits.tokens:
            return EndReason.TOKENS
        if total.usd > self._limits.usd:
            return EndReason.MONEY
        return None


class RunClock:
    """Measures the time of a run over all its sessions, against its limit."""

    def __init__(self, store: Store, run_id: str, limit_s: float | None) -> None:
        self._store, self._run_id, self._limit_s = store, run_id, limit_s
        self._stored_at = time.monotonic()

    def seconds_left(self) -> float | None:
        """Return the time left, or None if there is no limit."""
        if self._limit_s is None:
            return None
        taken = self._store.seconds(self._run_id) + time.monotonic() - self._stored_at
        return max(0.0, self._limit_s - taken)

    def seconds_to_next_check(self) -> float:
        left = self.seconds_left()
        return CLOCK_S if left is None else min(CLOCK_S, left)

    def tick(self) -> None:
        """Store the time at most every ``CLOCK_S`` seconds: a fast run has many attempts."""
        if time.monotonic() - self._stored_at >= CLOCK_S:
            self.store()

    def store(self) -> None:
        now = time.monotonic()
        self._store.clock(self._run_id, now - self._stored_at)
        self._stored_at = now


def worst_case(model: ChatModel, settings: RoleSettings, messages: Sequence[Message], form: ReplyForm) -> Spend:
    """Return the most a call can cost: no tokenizer makes more tokens of a text than it has bytes."""
    texts = [message.content for message in messages]
    texts += [form.name, form.description, *form.fields, *form.fields.values()]
    prompt = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    usage = Usage(input_tokens=prompt + ENVELOPE_TOKENS, output_tokens=settings.max_output_tokens)
    return Spend(usage.total, model.cost_usd(usage) or 0.0)
