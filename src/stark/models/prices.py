"""List prices of models, and a stand-in for estimates that only has a price."""

from __future__ import annotations

from collections.abc import Sequence

from genai_prices import calc_price
from pydantic_ai.usage import RequestUsage

from stark.core.chat import Message, Reply, ReplyForm, Usage
from stark.core.settings import RoleSettings


class PriceOnlyModel:
    """Stands for a model without a name or a key in an estimate. It cannot reply."""

    takes_temperature = True

    def __init__(self, settings: RoleSettings) -> None:
        self.name = settings.model or "no model named"
        self._settings = settings

    def cost_usd(self, usage: Usage) -> float | None:
        provider, _, model = self._settings.model.partition(":")
        return list_price_usd(usage, model, provider) if self._settings.base_url is None else None

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        raise AssertionError("an estimate calls no model")


def list_price_usd(usage: Usage, model: str, provider: str) -> float | None:
    """Price of a call by the public price list; None for an unlisted model."""
    cached = usage.cached_input_tokens if usage.cached_input_tokens <= usage.input_tokens else 0
    counted = RequestUsage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=cached,  # an inconsistent count gets no discount
        output_tokens=usage.output_tokens,
    )
    try:
        return float(calc_price(counted, model, provider_id=provider).total_price)
    except (LookupError, ValueError):  # an unlisted model, or inconsistent counts
        return None
