"""Chat models whose calls wait for their turn: one limit for each account at a provider, shared by all runs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence

from stark.core.chat import Message, Reply, ReplyForm, Usage
from stark.core.errors import ModelRefused, ModelUnavailable, ReplyLost
from stark.core.interfaces import ChatModel
from stark.core.settings import LimitSettings, RoleSettings
from stark.models.rates import Grant, RateWindow

Account = tuple[str, str | None, str | None]  # provider, address, variable of the key


class ProviderQueue:
    """The calls to one account."""

    def __init__(self, requests: int | None, tokens: int | None) -> None:
        self._window = RateWindow(requests, tokens)
        self._numbers = itertools.count()
        self._turns: dict[int, asyncio.Future[Grant]] = {}
        self._alarm: asyncio.TimerHandle | None = None

    async def wait(self, run: str, worst: int) -> Grant:
        """Wait until a call of this run may begin."""
        number = next(self._numbers)
        turn: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._turns[number] = turn
        self._window.add(run, number, worst)
        self._admit()
        try:
            return await turn
        except asyncio.CancelledError:
            self._window.withdraw(run, number)
            if turn.done() and not turn.cancelled():  # it was let through at the same moment
                self._window.settle(turn.result(), 0)
            raise
        finally:
            del self._turns[number]

    def settle(self, grant: Grant, tokens: int | None) -> None:
        """Note what a call took, and let others use what is left."""
        self._window.settle(grant, tokens)
        self._admit()

    def _admit(self) -> None:
        for number, grant in self._window.admit(time.monotonic()):
            self._turns[number].set_result(grant)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if (change := self._window.next_change()) is not None:
            wait_s = max(0.0, change - time.monotonic())
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._admit)


class LimitedModel:
    """A chat model for one run, which waits for its turn before each call."""

    def __init__(self, model: ChatModel, queue: ProviderQueue, run: str, max_output_tokens: int) -> None:
        self.name = model.name
        self._model, self._queue, self._run, self._max_output_tokens = model, queue, run, max_output_tokens

    @property
    def takes_temperature(self) -> bool:
        return self._model.takes_temperature

    def cost_usd(self, usage: Usage) -> float | None:
        return self._model.cost_usd(usage)

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        prompt = sum(len(message.content.encode("utf-8", "replace")) for message in messages)
        grant = await self._queue.wait(self._run, prompt + self._max_output_tokens)
        taken: int | None = None  # unknown, if the reply is lost
        try:
            reply = await self._model.reply(messages, form)
            taken = reply.usage.total
            return reply
        except ReplyLost:
            raise
        except (ModelRefused, ModelUnavailable):
            taken = 0
            raise
        finally:
            self._queue.settle(grant, taken)


class ProviderQueues:
    """The queues of a process, one for each account. All runs share them."""

    def __init__(self) -> None:
        self._queues: dict[tuple[Account, int | None, int | None], ProviderQueue] = {}

    def limit(self, model: ChatModel, role: RoleSettings, limits: LimitSettings, run: str) -> ChatModel:
        """Return the model with the limits of its provider; itself if it has none."""
        provider = role.model.partition(":")[0]
        requests, tokens = (
            _limit_of(provider, limit) for limit in (limits.requests_per_minute, limits.tokens_per_minute)
        )
        if requests is None and tokens is None:
            return model
        key = ((provider, role.base_url, role.api_key_env), requests, tokens)
        queue = self._queues.setdefault(key, ProviderQueue(requests, tokens))
        return LimitedModel(model, queue, run, role.max_output_tokens)


def _limit_of(provider: str, limit: int | dict[str, int] | None) -> int | None:
    return limit.get(provider) if isinstance(limit, dict) else limit
