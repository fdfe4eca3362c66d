"""Opens a provider's model from a role's settings, with the key from the environment."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from typing import Any
from urllib.parse import urlsplit

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model, known_model_names
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class
from pydantic_ai.providers.openai import OpenAIProvider

from stark.core.errors import KeyMissing, UsageError
from stark.core.settings import RoleSettings
from stark_worker.processes.process_tree import hide_memory

EXAMPLE = "for example openai:gpt-5 or anthropic:claude-sonnet-4-6"
_OPENAI_KEY, _OPENAI_HOST = "OPENAI_API_KEY", "openai.com"
_PLACEHOLDER_KEY = "no-key-needed"  # local servers mostly need none, but the client always sends one
_STARK_EXTRAS = frozenset({"google", "groq", "mistral", "bedrock"})
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


def open_provider(settings: RoleSettings) -> Model:
    """Open the model of a role's settings; raise UsageError for the part that is wrong."""
    hide_memory()  # the process holds a key from here on
    read_key(key_variable(settings), required=settings.api_key_env is not None)
    if settings.base_url is not None:
        return _open_address(settings, settings.base_url)
    provider, colon, _ = settings.model.partition(":")
    if not colon:
        raise UsageError(f"The model {settings.model!r} names no provider.", f"Write provider:name, {EXAMPLE}.")
    try:
        return infer_model(settings.model, lambda name: _make_provider(name, settings))
    except ImportError as error:
        raise _missing_package_error(provider, error) from error
    except ValueError as error:
        raise _unknown_provider_error(provider) from error
    except UserError as error:
        raise _unusable_model_error(settings.model, error) from error


def key_variable(settings: RoleSettings) -> str | None:
    """The environment variable that holds the key; None if no key is sent. Only OpenAI gets OpenAI's key."""
    if settings.api_key_env is not None:
        return settings.api_key_env
    if settings.base_url is not None:
        return _OPENAI_KEY if _is_openai(_host(settings.base_url)) else None
    provider = re.split("[:/]", settings.model)[0]
    family = re.sub("-(chat|responses|decisions|cloud|mantle)$", "", provider)
    return _KEY_VARIABLES.get(family, f"{family.upper().replace('-', '_')}_API_KEY")


def read_key(variable: str | None, required: bool = False) -> str | None:
    """Read the key from an environment variable. An error names the variable and never shows the key."""
    if variable is None:
        return None
    if not variable.isidentifier():  # most likely the key itself, so it is not shown
        raise UsageError(
            "The setting api_key_env is no name of an environment variable.", "Give the name, not the key."
        )
    key = os.environ.get(variable)
    if key is None and not required:
        return None
    remedy = f"Put the provider's key into {variable}."
    if not key:
        raise KeyMissing(f"The environment variable {variable} is not set.", remedy)
    if not re.fullmatch(r"[!-~]+", key):
        fault = "holds a space, a line break or another character that no key has"
        raise UsageError(f"The environment variable {variable} {fault}.", remedy)
    return key


def _open_address(settings: RoleSettings, url: str) -> Model:
    if not re.match("https?://[^/]", url):
        raise UsageError(f"The base_url {url!r} is no web address.", "Write it as http://host:port/v1.")
    if key_variable(settings) is None and _OPENAI_KEY in os.environ and not _is_local(_host(url)):
        raise UsageError(
            f"{_OPENAI_KEY} is OpenAI's and is not sent to {_host(url)}.",
            f"Name the variable with its key by --api-key-env NAME. If it needs no key, unset {_OPENAI_KEY}.",
        )
    provider = OpenAIProvider(base_url=url, api_key=read_key(key_variable(settings)) or _PLACEHOLDER_KEY)
    # Without this, a stream that breaks off counts as a complete answer.
    profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    return OpenAIChatModel(settings.model, provider=provider, profile=profile)


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _is_openai(host: str) -> bool:
    return host == _OPENAI_HOST or host.endswith(f".{_OPENAI_HOST}")


def _is_local(host: str) -> bool:
    """True for this machine or its own network, where servers mostly need no key."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".localhost", ".local"))


def _make_provider(provider: str, settings: RoleSettings) -> Provider[Any]:
    if settings.api_key_env is None:
        return infer_provider(provider)
    factory: Any = infer_provider_class(provider)
    try:
        provider_with_key: Provider[Any] = factory(api_key=read_key(settings.api_key_env, required=True))
    except TypeError as error:
        raise UserError(f"{provider} takes no key from api_key_env") from error
    return provider_with_key


def _unknown_provider_error(provider: str) -> UsageError:
    known = sorted({name.partition(":")[0] for name in known_model_names() if ":" in name})
    close_matches = difflib.get_close_matches(provider, known, n=1)
    guess = f" Did you mean {close_matches[0]!r}?" if close_matches else ""
    return UsageError(
        f"There is no provider called {provider!r}.{guess}",
        f"Write provider:name, {EXAMPLE}. A class of your own is package.module:Class.",
    )


def _missing_package_error(provider: str, error: ImportError) -> UsageError:
    named = re.search(r"pydantic-ai-slim\[([\w-]+)\]", str(error))
    extra = named[1] if named else provider
    package = "stark-kernels" if extra in _STARK_EXTRAS else "pydantic-ai-slim"
    return UsageError(f"The provider {provider!r} is not installed.", f"Run: pip install '{package}[{extra}]'.")


def _unusable_model_error(model: str, error: UserError) -> UsageError:
    if variables := re.findall(r"`([A-Z][A-Z0-9_]+)`", error.message):
        return KeyMissing(f"There is no key for {model}.", f"Set the environment variable {' or '.join(variables)}.")
    return UsageError(f"{model} cannot be used: {error.message}.", f"Write provider:name, {EXAMPLE}.")
