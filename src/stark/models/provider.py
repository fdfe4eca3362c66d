"""Chat models of real providers, through pydantic-ai. Retries, prices and refusals are settled here."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from genai_prices import calc_price
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    UnexpectedModelBehavior,
    UserError,
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
from pydantic_ai.models import Model, ModelRequestParameters, infer_model, known_model_names
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from stark.errors import ModelError, ModelRefused, ModelUnavailable, UsageError
from stark.interfaces import Finish, Message, Reply, ReplyForm, Usage
from stark.settings import RoleSettings

LONGEST_WAIT_S = 120.0
_LONGEST_BACKOFF_S = 60.0
_LONGEST_MESSAGE = 500
_PASSING = frozenset({408, 409, 425, 429})
_MALFORMED = frozenset({400, 422})
_PROMPT_TOO_LARGE = 413
_FAULTS = (ModelAPIError, UnexpectedModelBehavior, UserError)
EXAMPLE = "for example openai:gpt-5 or anthropic:claude-sonnet-4-6"
_NO_KEY = "no-key-needed"  # servers of one's own mostly want none, but the client insists on sending something
_OUR_EXTRAS = frozenset({"google", "groq", "mistral", "bedrock"})
_KEY_VARIABLES = {
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
    "azure": "AZURE_OPENAI_API_KEY",
    "cohere": "CO_API_KEY",
    "heroku": "HEROKU_INFERENCE_KEY",
    "huggingface": "HF_TOKEN",
    "snowflake": "SNOWFLAKE_TOKEN",
    "vercel": "VERCEL_AI_GATEWAY_API_KEY",
    "gateway": "PYDANTIC_AI_GATEWAY_API_KEY",
}
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
        if self.effort is not None and re.search(r"reasoning|thinking|effort", message):
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
        counted = RequestUsage(
            input_tokens=usage.input_tokens,
            cache_read_tokens=usage.cached_input_tokens,
            output_tokens=usage.output_tokens,
        )
        try:
            return float(calc_price(counted, self._model.model_name, provider_id=self._model.system).total_price)
        except (LookupError, ValueError):  # a model without a listed price, or counts that contradict each other
            return None

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._settings.retries + 1),
            wait=self._wait,
            retry=retry_if_exception(_may_pass),
            reraise=True,
        )
        try:
            return await retrying(self._ask, [_convert(message) for message in messages], form)
        except _FAULTS as error:
            if _is_too_long(error):
                return Reply(finish=Finish.PROMPT_TOO_LONG, cost_usd=0.0, model=self._model.model_name)
            raise self._explain(error) from error

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
                less = offer.without(_message(error).lower()) if _is_about_the_form(error) else None
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
        said = _message(error)
        said = f": {said.replace(self._key, '***') if self._key else said}."
        if isinstance(error, ModelAuthenticationError):
            return ModelRefused(f"{self.name} does not accept the key{said}", f"Check {self._key_variable}.")
        if isinstance(error, ModelQuotaExceededError):
            return ModelRefused(f"The account for {self.name} has no credit left{said}", "Top it up, then resume.")
        if isinstance(error, ModelNotFoundError):
            return ModelRefused(f"{self.name} is not known to its provider{said}", "Check the name and the address.")
        if _may_pass(error):
            tries = self._settings.retries + 1
            return ModelUnavailable(
                f"{self.name} did not answer; the provider failed {tries} times{said}",
                "Nothing is lost: resume the run later.",
            )
        return ModelRefused(f"{self.name} refused the request{said}", "Change the settings of the role, then resume.")


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


def _is_too_long(error: BaseException) -> bool:
    too_large = isinstance(error, ModelHTTPError) and error.status_code == _PROMPT_TOO_LARGE
    return too_large or isinstance(error, ModelContextWindowExceededError)


def _is_about_the_form(error: ModelHTTPError) -> bool:
    return error.status_code in _MALFORMED and not _is_too_long(error)


def _may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, ModelQuotaExceededError | ModelRequestRejectedError | UserError):
        return False
    if isinstance(error, ModelHTTPError):
        return error.status_code in _PASSING or error.status_code >= 500
    return isinstance(error, _FAULTS)  # a lost connection, a timeout, a body that is no answer


def _message(error: Exception) -> str:
    """What the provider said, without the wrapping."""
    body = getattr(error, "body", None)
    while isinstance(body, dict) and (inner := body.get("error") or body.get("message")):
        body = inner
    said = body if isinstance(body, str) else str(error)
    if isinstance(error, ModelHTTPError):
        said = f"HTTP {error.status_code}, {said}"
    said = " ".join(said.split()).rstrip(".")
    return said if len(said) <= _LONGEST_MESSAGE else f"{said[:_LONGEST_MESSAGE]} ..."


# -- opening a provider ----------------------------------------------------------------------------------------------


def open_provider(settings: RoleSettings) -> Model:
    """The model behind a role's settings; a UsageError says which part of them is wrong."""
    read_key(key_variable(settings), required=settings.api_key_env is not None)
    if settings.base_url is not None:
        return _open_address(settings, settings.base_url)
    provider, colon, _ = settings.model.partition(":")
    if not colon:
        raise UsageError(f"The model {settings.model!r} names no provider.", f"Write provider:name, {EXAMPLE}.")
    try:
        return infer_model(settings.model, lambda name: _connect(name, settings))
    except ImportError as error:
        raise _missing_package(provider, error) from error
    except ValueError as error:
        raise _unknown(provider) from error
    except UserError as error:
        raise _unusable(settings.model, error) from error


def key_variable(settings: RoleSettings) -> str:
    """The environment variable that holds the key."""
    if settings.api_key_env is not None:
        return settings.api_key_env
    if settings.base_url is not None:
        return "OPENAI_API_KEY"
    provider = re.split("[:/]", settings.model)[0]
    family = re.sub("-(chat|responses|decisions|cloud|mantle)$", "", provider)
    return _KEY_VARIABLES.get(family, f"{family.upper().replace('-', '_')}_API_KEY")


def read_key(variable: str, required: bool = False) -> str | None:
    """The key in an environment variable. One that cannot stand in a header is named, never shown."""
    key = os.environ.get(variable)
    if key is None and not required:
        return None
    if not key or not re.fullmatch(r"[!-~]+", key):
        fault = "holds a space, a line break or another character no key has" if key else "is not set"
        raise UsageError(f"The environment variable {variable} {fault}.", f"Put the provider's key into {variable}.")
    return key


def _open_address(settings: RoleSettings, url: str) -> Model:
    if not re.match("https?://[^/]", url):
        raise UsageError(f"The base_url {url!r} is no web address.", "Write it as http://host:port/v1.")
    provider = OpenAIProvider(base_url=url, api_key=read_key(key_variable(settings)) or _NO_KEY)
    # Without this a stream that breaks off quietly would pass for a complete answer.
    profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    return OpenAIChatModel(settings.model, provider=provider, profile=profile)


def _connect(provider: str, settings: RoleSettings) -> Provider[Any]:
    if settings.api_key_env is None:
        return infer_provider(provider)
    factory: Any = infer_provider_class(provider)
    try:
        provider_with_key: Provider[Any] = factory(api_key=read_key(settings.api_key_env, required=True))
    except TypeError as error:
        raise UserError(f"{provider} takes no key from api_key_env") from error
    return provider_with_key


def _unknown(provider: str) -> UsageError:
    known = sorted({name.partition(":")[0] for name in known_model_names() if ":" in name})
    near = difflib.get_close_matches(provider, known, n=1)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return UsageError(
        f"There is no provider called {provider!r}.{guess}",
        f"Write provider:name, {EXAMPLE}; a class of your own is named package.module:Class.",
    )


def _missing_package(provider: str, error: ImportError) -> UsageError:
    named = re.search(r"pydantic-ai-slim\[([\w-]+)\]", str(error))
    extra = named[1] if named else provider
    package = "stark-kernels" if extra in _OUR_EXTRAS else "pydantic-ai-slim"
    return UsageError(f"The provider {provider!r} is not installed.", f"Run: pip install '{package}[{extra}]'.")


def _unusable(model: str, error: UserError) -> UsageError:
    if variables := re.findall(r"`([A-Z][A-Z0-9_]+)`", error.message):
        return UsageError(f"There is no key for {model}.", f"Set the environment variable {' or '.join(variables)}.")
    return UsageError(f"{model} cannot be used: {error.message}.", f"Write provider:name, {EXAMPLE}.")
