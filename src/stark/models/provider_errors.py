"""Classifies the errors of providers: lasting or transient, lost reply, prompt too long."""

from __future__ import annotations

from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    UnexpectedModelBehavior,
    UserError,
)

MAX_MESSAGE_CHARACTERS = 500
TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
INVALID_STATUS = frozenset({400, 422})
TOO_LARGE_STATUS = 413
PROVIDER_ERRORS = (ModelAPIError, UnexpectedModelBehavior, UserError)


def is_prompt_too_long(error: BaseException) -> bool:
    """True if the prompt exceeds what the model or its server accepts."""
    too_large = isinstance(error, ModelHTTPError) and error.status_code == TOO_LARGE_STATUS
    return too_large or isinstance(error, ModelContextWindowExceededError)


def is_invalid_request(error: ModelHTTPError) -> bool:
    """True if the provider refuses an option of the request."""
    return error.status_code in INVALID_STATUS and not is_prompt_too_long(error)


def is_transient(error: BaseException) -> bool:
    """True if the same request may succeed later."""
    if isinstance(error, ModelQuotaExceededError | ModelRequestRejectedError | UserError):
        return False
    if isinstance(error, ModelHTTPError):
        return error.status_code in TRANSIENT_STATUS or error.status_code >= 500
    return isinstance(error, PROVIDER_ERRORS)  # a lost connection, a timeout, a body that is no answer


def is_reply_lost(error: BaseException) -> bool:
    """True if the request was sent, and may be charged, but its answer never came."""
    never_sent = isinstance(error, ModelConnectionError) and error.phase in ("pool", "connect")
    return is_transient(error) and not never_sent and not isinstance(error, ModelHTTPError)


def format_error(error: Exception, secret: str | None = None) -> str:
    """The provider's message without wrapping and without the secret."""
    body = getattr(error, "body", None)
    while isinstance(body, dict) and (inner := body.get("error") or body.get("message")):
        body = inner
    message = body if isinstance(body, str) else str(error)
    if isinstance(error, ModelHTTPError):
        message = f"HTTP {error.status_code}" + (message and f", {message}")
    message = " ".join(message.split()).rstrip(".")
    if secret:  # before the text is cut, so that no part of it can be left at the end
        message = message.replace(secret, "***")
    return message if len(message) <= MAX_MESSAGE_CHARACTERS else f"{message[:MAX_MESSAGE_CHARACTERS]} ..."
