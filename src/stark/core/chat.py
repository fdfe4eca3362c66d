"""Messages to a chat model and its replies."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class ReplyForm:
    """The answer a role must give: named texts. Sent as a tool if the provider has tools, else as fenced blocks."""

    name: str
    description: str
    fields: dict[str, str]  # name -> purpose


class Finish(enum.StrEnum):
    """Reason why a model stopped."""

    COMPLETE = "complete"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    PROMPT_TOO_LONG = "prompt_too_long"


class ReplyFault(enum.StrEnum):
    """Reason why a reply is unusable."""

    EMPTY = "empty"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    PROMPT_TOO_LONG = "prompt_too_long"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    NO_CODE = "no_code"
    TWO_ANSWERS = "two_answers"


@dataclass(frozen=True)
class Usage:
    """Tokens of one call. Reasoning counts as output. ``cached_input_tokens`` are a part of the input."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True)
class Reply:
    """A model's answer before it is parsed.

    ``arguments`` is the raw JSON of the structured answer, None if the model wrote plain text. ``notes`` name settings
    that did not reach the model, such as a refused temperature.
    """

    text: str = ""
    arguments: str | None = None
    finish: Finish = Finish.COMPLETE
    usage: Usage = Usage()
    cost_usd: float | None = None
    model: str = ""
    notes: tuple[str, ...] = ()
