"""What a run may spend. A call sets its worst case aside first, so calls in flight never exceed a limit together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stark.core.chat import Message, ReplyForm, Usage
from stark.core.interfaces import ChatModel
from stark.core.records import Spend
from stark.core.settings import BudgetSettings, RoleSettings

ENVELOPE_TOKENS = 1_024  # what a provider may add around a prompt: chat template, tool preamble


class BudgetExhausted(Exception):
    """Not a fault: the run ends here and can be extended."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


class Ledger:
    """Keeps what is spent and what is set aside within the limits."""

    def __init__(self, limits: BudgetSettings, spent: Spend) -> None:
        self._limits = limits
        self._spent = spent
        self._aside: list[Spend] = []
        self._settled = asyncio.Event()

    @property
    def spent(self) -> Spend:
        return self._spent

    async def reserve(self, worst: Spend) -> None:
        """Set an amount aside. Waits while calls in flight may still give some of theirs back."""
        while limit := self._exceeded_by(worst):
            if not self._aside:
                raise BudgetExhausted(limit)
            self._settled.clear()
            await self._settled.wait()
        self._aside.append(worst)

    def settle(self, worst: Spend, actual: Spend) -> None:
        """Replace an amount set aside by what was really spent."""
        self._aside.remove(worst)
        self._spent = self._spent + actual
        self._settled.set()

    def _exceeded_by(self, worst: Spend) -> str | None:
        total = sum(self._aside, self._spent + worst)
        if self._limits.tokens is not None and total.tokens > self._limits.tokens:
            return "tokens"
        if total.usd > self._limits.usd:
            return "money"
        return None


def worst_case(model: ChatModel, settings: RoleSettings, messages: Sequence[Message], form: ReplyForm) -> Spend:
    """The most a call can cost: no tokenizer makes more tokens of a text than it has bytes."""
    texts = [message.content for message in messages]
    texts += [form.name, form.description, *form.fields, *form.fields.values()]
    prompt = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    usage = Usage(input_tokens=prompt + ENVELOPE_TOKENS, output_tokens=settings.max_output_tokens)
    return Spend(usage.total, model.cost_usd(usage) or 0.0)
