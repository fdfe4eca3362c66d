"""Chat models of real providers, through pydantic-ai. Retries, prices and refusals are settled here."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import (
    ModelAuthenticationError,
    ModelConnectionError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from stark.core.chat import Finish, Message, Reply, ReplyForm, Usage
from stark.core.errors import ModelError, ModelRefused, ModelUnavailable, PromptRefused, ReplyLost
from stark.core.settings import RoleSettings
from stark.models.credentials import key_variable, open_provider, read_key
from stark.models.prices import listed_price
from stark.models.provider_errors import (
    PROVIDER_FAULTS,
    error_message,
    is_about_the_form,
    is_lost,
    is_too_long,
    may_pass,
)

LONGEST_WAIT_S = 120.0


_LONGEST_BACKOFF_S = 60.0


_FINISH = {"length": Finish.TRUNCATED, "content_filter": Finish.REFUSED}


@dataclasses.dataclass(frozen=True)
class Offer:
    """What a request carries beside its messages. A part that the model refused is taken out for good."""

    temperature: float | None
    effort: str | None
    tool: bool
    notes: tuple[str, ...] = ()

    def without(self, message: str) -> Offer | None:
        """The offer less the part that an error message objects to; None when it objects to none of them."""
        if self.temperature is not None and "temperature" in message:
            return self.without_temperature()
        if self.tool and re.search(r"\btools?\b|tool_choice|function.call", message):
            return dataclasses.replace(
                self, tool=False, notes=(*self.notes, "tool refused by the model; asked for text")
            )
        about_length = "max_tokens" in message  # thinking needs room, which is the user's to give
        if self.effort is not None and re.search(r"reasoning|thinking|effort", message) and not about_length:
            note = f"effort {self.effort} refused by the model; called without"
            return dataclasses.replace(self, effort=None, notes=(*self.notes, note))
        return None

    def without_temperature(self) -> Offer:
        note = f"temperature {self.temperature} refused by the model; called without"
        return dataclasses.replace(self, temperature=None, notes=(*self.notes, note))


class ProviderModel:
    """One role's model at a provider, or at an OpenAI-compatible address."""

    def __init__(self, settings: RoleSettings, backoff_s: float = 1.0) -> None:
        self.name = settings.model
        self._settings = settings
        self._model = open_provider(settings)
        self._key_variable = key_variable(settings)
        self._key = read_key(self._key_variable)
        self._offer = _first_offer(settings, self._model)
        self._backoff = wait_random_exponential(multiplier=backoff_s, max=_LONGEST_BACKOFF_S)

    @property
    def takes_temperature(self) -> bool:
        return self._offer.temperature is not None

    def cost_usd(self, usage: Usage) -> float | None:
        if self._settings.base_url is not None:  # whoever serves it there sets the price
            return None
        return listed_price(usage, self._model.model_name, self._model.system)

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._settings.retries + 1),
            wait=self._wait,
            retry=retry_if_exception(lambda error: may_pass(error) and not is_lost(error)),
            reraise=True,
        )
        try:
            reply: Reply = await retrying(self._ask, [_convert(message) for message in messages], form)
        except PROVIDER_FAULTS as error:
            if is_too_long(error):
                said = (error_message(error, self._key),)
                return Reply(finish=Finish.PROMPT_TOO_LONG, cost_usd=0.0, model=self._model.model_name, notes=said)
            raise self._explain(error) from error
        return reply if reply.usage.total else self._counted_by_bytes(reply, messages)

    def _counted_by_bytes(self, reply: Reply, messages: Sequence[Message]) -> Reply:
        """A reply whose provider reports no usage: no tokenizer makes more tokens of a text than it has bytes."""
        asked = sum(len(message.content.encode("utf-8", "replace")) for message in messages)
        said = len(f"{reply.text}{reply.arguments or ''}".encode("utf-8", "replace"))
        usage = Usage(asked, min(said, self._settings.max_output_tokens))
        note = "the provider reported no usage; bytes were counted as tokens"
        return dataclasses.replace(reply, usage=usage, cost_usd=self.cost_usd(usage), notes=(*reply.notes, note))

    def _wait(self, state: RetryCallState) -> float:
        """Full jitter, but never sooner than the provider asked for."""
        error = state.outcome.exception() if state.outcome else None
        asked = getattr(error, "retry_after", None) or 0.0
        return max(self._backoff(state), min(asked, LONGEST_WAIT_S))

    async def _ask(self, messages: list[ModelMessage], form: ReplyForm) -> Reply:
        """One request; a further one for each part of the offer that the model refuses."""
        offer = self._offer
        while True:
            try:
                return self._read(await self._send(messages, form, offer), offer)
            except ModelHTTPError as error:
                less = offer.without(error_message(error).lower()) if is_about_the_form(error) else None
                if less is None:
                    raise
                self._offer = offer = less

    async def _send(self, messages: list[ModelMessage], form: ReplyForm, offer: Offer) -> ModelResponse:
        parameters = _parameters(form) if offer.tool else ModelRequestParameters()
        try:
            # Entered per request: the connection then belongs to this event loop and nothing is left open at exit.
            async with self._model:
                return await self._exchange(messages, self._model_settings(offer), parameters)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            # A body of another shape (no choices, a list, null) is not checked for by the library and trips it up.
            raise UnexpectedModelBehavior("the answer has not the shape of a reply") from error

    async def _exchange(
        self, messages: list[ModelMessage], settings: ModelSettings, parameters: ModelRequestParameters
    ) -> ModelResponse:
        model = self._model
        if not self._settings.stream:
            return await model_request(model, messages, model_settings=settings, model_request_parameters=parameters)
        async with model_request_stream(
            model, messages, model_settings=settings, model_request_parameters=parameters
        ) as stream:
            async for _ in stream:
                pass
        return self._whole(stream.get())

    def _whole(self, response: ModelResponse) -> ModelResponse:
        """A streamed response that came to its end; one that merely stopped is a lost connection."""
        said_why = response.finish_reason or (response.provider_details or {}).get("finish_reason")
        if response.state != "complete" or not said_why:
            raise ModelConnectionError(self._model.model_name, "the stream broke off", phase="read")
        return response

    def _model_settings(self, offer: Offer) -> ModelSettings:
        timeout = self._settings.timeout_s
        wanted = {
            "max_tokens": self._settings.max_output_tokens,
            "request_timeout": timeout,
            "timeout": timeout,
            "max_retries": 0,  # retrying is done here alone
            "temperature": offer.temperature,
            "thinking": offer.effort,
        }
        ignored = self._model.unsupported_settings  # passing one of these would only warn
        return cast(ModelSettings, {k: v for k, v in wanted.items() if v is not None and k not in ignored})

    def _read(self, response: ModelResponse, offer: Offer) -> Reply:
        calls = [_raw(part) for part in response.parts if isinstance(part, ToolCallPart)]
        usage = Usage(response.usage.input_tokens, response.usage.output_tokens, response.usage.cache_read_tokens)
        return Reply(
            text="".join(part.content for part in response.parts if isinstance(part, TextPart)),
            arguments=json.dumps(calls) if len(calls) > 1 else next(iter(calls), None),
            finish=_FINISH.get(response.finish_reason or "", Finish.COMPLETE),
            usage=usage,
            cost_usd=self.cost_usd(usage),
            model=response.model_name or self._model.model_name,
            notes=offer.notes,
        )

    def _explain(self, error: Exception) -> ModelError:
        """The provider's fault in our words, bounded and without the key."""
        said = f": {error_message(error, self._key)}."
        if isinstance(error, ModelAuthenticationError):
            check = f"Check {self._key_variable}." if self._key_variable else "Name its key by --api-key-env NAME."
            return ModelRefused(f"{self.name} does not accept the key{said}", check)
        if isinstance(error, ModelQuotaExceededError):
            return ModelRefused(f"The account for {self.name} has no credit left{said}", "Top it up, then resume.")
        if isinstance(error, ModelNotFoundError):
            return ModelRefused(f"{self.name} is not known to its provider{said}", "Check the name and the address.")
        if is_lost(error):
            return ReplyLost(
                f"The reply of {self.name} never arrived whole{said}",
                "Nothing that did arrive is lost: resume the run later.",
            )
        if may_pass(error):
            tries = self._settings.retries + 1
            return ModelUnavailable(
                f"{self.name} did not answer; the provider failed {tries} times{said}",
                "Nothing is lost: resume the run later.",
            )
        return PromptRefused(
            f"{self.name} refused the request{said}",
            "Change the settings of the role, then resume; a prompt that is refused again counts as a failed attempt.",
        )


def _first_offer(settings: RoleSettings, model: Model) -> Offer:
    tools = bool(model.profile.get("supports_tools", True))
    by_itself = tools and settings.base_url is None  # not every compatible server has tools switched on
    tool = by_itself if settings.output == "auto" else settings.output == "tool"
    offer = Offer(settings.temperature, settings.effort, tool)
    if settings.temperature is None or _accepts_temperature(model, settings.effort):
        return offer
    return offer.without_temperature()


def _accepts_temperature(model: Model, effort: str | None) -> bool:
    """What pydantic-ai knows of a model. Asked beforehand, because later it drops the temperature with a warning."""
    profile = cast(Mapping[str, Any], model.profile)
    if "temperature" in {*model.unsupported_settings, *profile.get("openai_unsupported_model_settings", ())}:
        return False
    if profile.get("anthropic_disallows_sampling_settings"):
        return False
    if not profile.get("openai_supports_reasoning"):
        return True
    efforts = profile.get("openai_reasoning_efforts")
    can_rest = profile.get("openai_supports_reasoning_effort_none") if efforts is None else "none" in efforts
    return bool(can_rest) and effort is None and not profile.get("thinking_enabled_by_default")


def _convert(message: Message) -> ModelMessage:
    # A reply that is sent back may hold halves of surrogate pairs, which no request can carry.
    content = message.content.encode("utf-8", "replace").decode("utf-8")
    if message.role == "assistant":
        return ModelResponse(parts=[TextPart(content)])
    part = SystemPromptPart if message.role == "system" else UserPromptPart
    return ModelRequest(parts=[part(content)])


def _parameters(form: ReplyForm) -> ModelRequestParameters:
    """The form as the one tool a model may answer with; plain text stays allowed."""
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "description": purpose} for name, purpose in form.fields.items()},
        "required": list(form.fields),
        "additionalProperties": False,
    }
    tool = ToolDefinition(name="submit", parameters_json_schema=schema, description=form.description, kind="output")
    return ModelRequestParameters(output_mode="tool", output_tools=[tool], allow_text_output=True)


def _raw(call: ToolCallPart) -> str:
    return call.args if isinstance(call.args, str) else json.dumps(call.args or {})
