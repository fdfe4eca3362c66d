"""Chat models of real providers, through pydantic-ai, with retries and prices."""

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
from stark.models.prices import list_price_usd
from stark.models.provider_errors import (
    PROVIDER_ERRORS,
    format_error,
    is_invalid_request,
    is_prompt_too_long,
    is_reply_lost,
    is_transient,
)

MAX_RETRY_AFTER_S = 120.0
_MAX_BACKOFF_S = 60.0
_FINISH = {"length": Finish.TRUNCATED, "content_filter": Finish.REFUSED}


@dataclasses.dataclass(frozen=True)
class RequestOptions:
    """The options of a request. An option that the model refuses is dropped from all later requests."""

    temperature: float | None
    effort: str | None
    use_tool: bool
    notes: tuple[str, ...] = ()

    def without(self, message: str) -> RequestOptions | None:
        """The options without the one that an error message objects to; None if it objects to none."""
        if self.temperature is not None and "temperature" in message:
            return self.without_temperature()
        if self.use_tool and re.search(r"\btools?\b|tool_choice|function.call", message):
            return dataclasses.replace(
                self, use_tool=False, notes=(*self.notes, "tool refused by the model; asked for text")
            )
        about_length = "max_tokens" in message  # thinking needs tokens, and only the user can raise that limit
        if self.effort is not None and re.search(r"reasoning|thinking|effort", message) and not about_length:
            note = f"effort {self.effort} refused by the model; called without"
            return dataclasses.replace(self, effort=None, notes=(*self.notes, note))
        return None

    def without_temperature(self) -> RequestOptions:
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
        self._options = _initial_options(settings, self._model)
        self._backoff = wait_random_exponential(multiplier=backoff_s, max=_MAX_BACKOFF_S)

    @property
    def takes_temperature(self) -> bool:
        return self._options.temperature is not None

    def cost_usd(self, usage: Usage) -> float | None:
        if self._settings.base_url is not None:  # another server has its own prices
            return None
        return list_price_usd(usage, self._model.model_name, self._model.system)

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._settings.retries + 1),
            wait=self._wait,
            retry=retry_if_exception(lambda error: is_transient(error) and not is_reply_lost(error)),
            reraise=True,
        )
        try:
            reply: Reply = await retrying(self._ask, [_convert_message(message) for message in messages], form)
        except PROVIDER_ERRORS as error:
            if is_prompt_too_long(error):
                notes = (format_error(error, self._key),)
                return Reply(finish=Finish.PROMPT_TOO_LONG, cost_usd=0.0, model=self._model.model_name, notes=notes)
            raise self._translate_error(error) from error
        return reply if reply.usage.total else self._estimate_usage(reply, messages)

    def _estimate_usage(self, reply: Reply, messages: Sequence[Message]) -> Reply:
        """Count bytes as tokens if the provider reports no usage: no text has more tokens than bytes."""
        input_bytes = sum(len(message.content.encode("utf-8", "replace")) for message in messages)
        output_bytes = len(f"{reply.text}{reply.arguments or ''}".encode("utf-8", "replace"))
        usage = Usage(input_bytes, min(output_bytes, self._settings.max_output_tokens))
        note = "the provider reported no usage; bytes were counted as tokens"
        return dataclasses.replace(reply, usage=usage, cost_usd=self.cost_usd(usage), notes=(*reply.notes, note))

    def _wait(self, state: RetryCallState) -> float:
        """Full jitter, but at least as long as the provider asked for."""
        error = state.outcome.exception() if state.outcome else None
        asked = getattr(error, "retry_after", None) or 0.0
        return max(self._backoff(state), min(asked, MAX_RETRY_AFTER_S))

    async def _ask(self, messages: list[ModelMessage], form: ReplyForm) -> Reply:
        """Send one request, and another for each option that the model refuses."""
        options = self._options
        while True:
            try:
                return self._make_reply(await self._send(messages, form, options), options)
            except ModelHTTPError as error:
                reduced = options.without(format_error(error).lower()) if is_invalid_request(error) else None
                if reduced is None:
                    raise
                self._options = options = reduced

    async def _send(self, messages: list[ModelMessage], form: ReplyForm, options: RequestOptions) -> ModelResponse:
        parameters = _tool_parameters(form) if options.use_tool else ModelRequestParameters()
        try:
            # One connection per request: it belongs to this event loop and is closed at exit.
            async with self._model:
                return await self._exchange(messages, self._model_settings(options), parameters)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            # The library does not check the shape of a body (no choices, a list, null) and fails on it.
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
        return self._require_complete(stream.get())

    def _require_complete(self, response: ModelResponse) -> ModelResponse:
        """Return a streamed response that is complete; one that stopped early is a lost connection."""
        reason = response.finish_reason or (response.provider_details or {}).get("finish_reason")
        if response.state != "complete" or not reason:
            raise ModelConnectionError(self._model.model_name, "the stream broke off", phase="read")
        return response

    def _model_settings(self, options: RequestOptions) -> ModelSettings:
        timeout = self._settings.timeout_s
        wanted = {
            "max_tokens": self._settings.max_output_tokens,
            "request_timeout": timeout,
            "timeout": timeout,
            "max_retries": 0,  # only this class retries
            "temperature": options.temperature,
            "thinking": options.effort,
        }
        ignored = self._model.unsupported_settings  # these would only cause warnings
        return cast(ModelSettings, {k: v for k, v in wanted.items() if v is not None and k not in ignored})

    def _make_reply(self, response: ModelResponse, options: RequestOptions) -> Reply:
        calls = [_raw_arguments(part) for part in response.parts if isinstance(part, ToolCallPart)]
        usage = Usage(response.usage.input_tokens, response.usage.output_tokens, response.usage.cache_read_tokens)
        return Reply(
            text="".join(part.content for part in response.parts if isinstance(part, TextPart)),
            arguments=json.dumps(calls) if len(calls) > 1 else next(iter(calls), None),
            finish=_FINISH.get(response.finish_reason or "", Finish.COMPLETE),
            usage=usage,
            cost_usd=self.cost_usd(usage),
            model=response.model_name or self._model.model_name,
            notes=options.notes,
        )

    def _translate_error(self, error: Exception) -> ModelError:
        """Translate a provider's error into STARK's, shortened and without the key."""
        detail = f": {format_error(error, self._key)}."
        if isinstance(error, ModelAuthenticationError):
            check = f"Check {self._key_variable}." if self._key_variable else "Name its key with --api-key-env NAME."
            return ModelRefused(f"{self.name} does not accept the key{detail}", check)
        if isinstance(error, ModelQuotaExceededError):
            remedy = "Add credit, then run stark resume."
            return ModelRefused(f"The account for {self.name} has no credit{detail}", remedy)
        if isinstance(error, ModelNotFoundError):
            return ModelRefused(f"{self.name} is unknown to its provider{detail}", "Check the name and the address.")
        if is_reply_lost(error):
            return ReplyLost(
                f"The reply of {self.name} did not arrive completely{detail}",
                "Earlier replies are stored. Continue later with stark resume.",
            )
        if is_transient(error):
            tries = self._settings.retries + 1
            return ModelUnavailable(
                f"{self.name} did not answer; the provider failed {tries} times{detail}",
                "Nothing is lost. Continue later with stark resume.",
            )
        return PromptRefused(
            f"{self.name} refused the request{detail}",
            "Change the settings of the role, then run stark resume. A second refusal counts as a failed attempt.",
        )


def _initial_options(settings: RoleSettings, model: Model) -> RequestOptions:
    tools = bool(model.profile.get("supports_tools", True))
    by_default = tools and settings.base_url is None  # not every compatible server supports tools
    use_tool = by_default if settings.output == "auto" else settings.output == "tool"
    options = RequestOptions(settings.temperature, settings.effort, use_tool)
    if settings.temperature is None or _accepts_temperature(model, settings.effort):
        return options
    return options.without_temperature()


def _accepts_temperature(model: Model, effort: str | None) -> bool:
    """True if pydantic-ai passes a temperature on. Checked first, because it would drop it with only a warning."""
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


def _convert_message(message: Message) -> ModelMessage:
    # A reply that is sent back may hold lone surrogates, which no request can carry.
    content = message.content.encode("utf-8", "replace").decode("utf-8")
    if message.role == "assistant":
        return ModelResponse(parts=[TextPart(content)])
    part = SystemPromptPart if message.role == "system" else UserPromptPart
    return ModelRequest(parts=[part(content)])


def _tool_parameters(form: ReplyForm) -> ModelRequestParameters:
    """Offer the form as the only tool; plain text stays allowed."""
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "description": purpose} for name, purpose in form.fields.items()},
        "required": list(form.fields),
        "additionalProperties": False,
    }
    tool = ToolDefinition(name="submit", parameters_json_schema=schema, description=form.description, kind="output")
    return ModelRequestParameters(output_mode="tool", output_tools=[tool], allow_text_output=True)


def _raw_arguments(call: ToolCallPart) -> str:
    return call.args if isinstance(call.args, str) else json.dumps(call.args or {})
