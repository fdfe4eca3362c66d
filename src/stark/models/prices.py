"""TODO."""

from __future__ import annotations

from collections.abc import Sequence

from genai_prices import calc_price
from pydantic_ai.usage import RequestUsage

from stark.core.chat import Message, Reply, ReplyForm, Usage
from stark.core.settings import RoleSettings


class UnaskedModel:
    """Stands in an estimate for a model that there is no key for, or that nobody has named: it has at most a price."""

    takes_temperature = True

    def __init__(self, settings: RoleSettings) -> None:
        self.name = settings.model or "no model named"
        self._settings = settings

    def cost_usd(self, usage: Usage) -> float | None:
        provider, _, model = self._settings.model.partition(":")
        return listed_price(usage, model, provider) if self._settings.base_url is None else None

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        raise AssertionError("an estimate asks nobody")


def listed_price(usage: Usage, model: str, provider: str) -> float | None:
    cached = usage.cached_input_tokens if usage.cached_input_tokens <= usage.input_tokens else 0
    counted = RequestUsage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=cached,  # a count that contradicts itself gets no discount
        output_tokens=usage.output_tokens,
    )
    try:
        return float(calc_price(counted, model, provider_id=provider).total_price)
    except (LookupError, ValueError):  # a model without a listed price, or counts that contradict each other
        return None
