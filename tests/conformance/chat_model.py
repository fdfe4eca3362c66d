"""The contract of every chat model. Subclass ``ChatModelConformance``, give ``model``, and let pytest collect it."""

from __future__ import annotations

import asyncio

import pytest

from stark.core.chat import Finish, Message, Reply, ReplyForm, Usage
from stark.core.interfaces import ChatModel

FORM = ReplyForm("code", "Hand in the kernel.", {"explanation": "What was done.", "source": "The source."})


class ChatModelConformance:
    """``model`` must be able to give at least eight replies."""

    @pytest.fixture
    def model(self) -> ChatModel:
        raise NotImplementedError("return a chat model that can give at least eight replies")

    def ask(self, model: ChatModel, *contents: str) -> Reply:
        messages = [Message("system", "You write kernels."), *[Message("user", content) for content in contents]]
        return asyncio.run(model.reply(messages, FORM))

    def test_it_has_a_name_and_knows_about_its_temperature(self, model: ChatModel):
        assert isinstance(model.name, str)
        assert model.name
        assert isinstance(model.takes_temperature, bool)

    def test_a_price_is_unknown_or_grows_with_the_tokens(self, model: ChatModel):
        prices = [model.cost_usd(Usage(tokens, tokens)) for tokens in (0, 1_000, 1_000_000)]
        if None in prices:
            assert prices == [None] * 3
        else:
            assert 0.0 == prices[0] <= prices[1] <= prices[2]

    def test_a_reply_is_complete(self, model: ChatModel):
        reply = self.ask(model, "Write one.")
        assert isinstance(reply.text, str)
        assert reply.arguments is None or isinstance(reply.arguments, str)
        assert isinstance(reply.finish, Finish)
        assert min(reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_input_tokens) >= 0
        assert reply.usage.cached_input_tokens <= reply.usage.input_tokens
        assert reply.cost_usd is None or reply.cost_usd >= 0
        assert reply.model

    def test_a_reply_costs_what_was_said_beforehand(self, model: ChatModel):
        reply = self.ask(model, "Write one.")
        assert reply.cost_usd == model.cost_usd(reply.usage)

    @pytest.mark.parametrize("content", ["", "\0", "\ud800", "\ufeff\r\n", "שלום" * 1000, "`" * 100_000])
    def test_any_text_can_be_asked(self, model: ChatModel, content: str):
        assert isinstance(self.ask(model, "Write one.", content), Reply)

    def test_a_conversation_can_go_on(self, model: ChatModel):
        messages = [Message("user", "Write one."), Message("assistant", "Here."), Message("user", "Another.")]
        assert isinstance(asyncio.run(model.reply(messages, FORM)), Reply)

    def test_calls_may_be_in_flight_together(self, model: ChatModel):
        async def ask_together() -> list[Reply]:
            return await asyncio.gather(*[model.reply([Message("user", "Write one.")], FORM) for _ in range(4)])

        assert all(isinstance(reply, Reply) for reply in asyncio.run(ask_together()))

    def test_one_event_loop_after_another(self, model: ChatModel):
        assert all(isinstance(self.ask(model, "Write one."), Reply) for _ in range(3))
