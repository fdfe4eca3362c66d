"""TODO."""

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

_LONGEST_MESSAGE = 500


_PASSING = frozenset({408, 409, 425, 429})


_MALFORMED = frozenset({400, 422})


_PROMPT_TOO_LARGE = 413


PROVIDER_FAULTS = (ModelAPIError, UnexpectedModelBehavior, UserError)


def is_too_long(error: BaseException) -> bool:
    too_large = isinstance(error, ModelHTTPError) and error.status_code == _PROMPT_TOO_LARGE
    return too_large or isinstance(error, ModelContextWindowExceededError)


def is_about_the_form(error: ModelHTTPError) -> bool:
    return error.status_code in _MALFORMED and not is_too_long(error)


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, ModelQuotaExceededError | ModelRequestRejectedError | UserError):
        return False
    if isinstance(error, ModelHTTPError):
        return error.status_code in _PASSING or error.status_code >= 500
    return isinstance(error, PROVIDER_FAULTS)  # a lost connection, a timeout, a body that is no answer


def is_lost(error: BaseException) -> bool:
    """Whether the request was taken, so that it may have been charged, and its answer did not come."""
    never_sent = isinstance(error, ModelConnectionError) and error.phase in ("pool", "connect")
    return may_pass(error) and not never_sent and not isinstance(error, ModelHTTPError)


def error_message(error: Exception, secret: str | None = None) -> str:
    """What the provider said, without the wrapping and without the secret."""
    body = getattr(error, "body", None)
    while isinstance(body, dict) and (inner := body.get("error") or body.get("message")):
        body = inner
    said = body if isinstance(body, str) else str(error)
    if isinstance(error, ModelHTTPError):
        said = f"HTTP {error.status_code}, {said}"
    said = " ".join(said.split()).rstrip(".")
    if secret:  # before anything is cut off, or half of it could be left at the end
        said = said.replace(secret, "***")
    return said if len(said) <= _LONGEST_MESSAGE else f"{said[:_LONGEST_MESSAGE]} ..."
