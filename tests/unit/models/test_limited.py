"""Models with a limit of their provider: calls wait, and a withdrawn or refused call takes nothing."""

from __future__ import annotations

import asyncio

import pytest

from fakes import PretendModel, PrudishModel
from stark.core.chat import Message, ReplyForm
from stark.core.errors import PromptRefused
from stark.core.settings import LimitSettings, RoleSettings
from stark.models.limited import LimitedModel, ProviderQueue, ProviderQueues

FORM = ReplyForm("code", "Gives code.", {"code": "the code"})
ROLE = RoleSettings(model="openai:some")


def messages(text: str = "hello") -> list[Message]:
    return [Message("system", "You help."), Message("user", f"{text}\n\n## Task\n\n```python\na = 1\nb = 2\n```\n")]


def test_only_a_limit_for_the_own_provider_counts():
    model, queues = PretendModel(ROLE), ProviderQueues()
    assert queues.limit(model, ROLE, LimitSettings(), "run") is model
    assert queues.limit(model, ROLE, LimitSettings(requests_per_minute={"google": 1}), "run") is model
    assert isinstance(queues.limit(model, ROLE, LimitSettings(requests_per_minute={"openai": 1}), "run"), LimitedModel)


def test_runs_share_the_limit_of_an_account():
    async def call_from_two_runs():
        queues, limits = ProviderQueues(), LimitSettings(requests_per_minute=1)
        one, other = (queues.limit(PretendModel(ROLE), ROLE, limits, run) for run in ("one", "other"))
        await one.reply(messages(), FORM)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await other.reply(messages(), FORM)

    asyncio.run(call_from_two_runs())


def test_a_refused_call_gives_its_tokens_back():
    async def call_twice():
        queue = ProviderQueue(None, 2_000)
        model = LimitedModel(PrudishModel(ROLE), queue, "run", 1_500)
        with pytest.raises(PromptRefused):
            await model.reply(messages("# indecent"), FORM)
        async with asyncio.timeout(5.0):
            return await model.reply(messages(), FORM)

    assert asyncio.run(call_twice()).text
