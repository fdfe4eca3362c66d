"""TODO."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

# -- what is said to a chat model, and what comes back --------------------------------------------------------------


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class ReplyForm:
    """The answer a role must give: named texts. Sent as a tool where there are tools, as fenced blocks otherwise."""

    name: str
    description: str
    fields: dict[str, str]  # name -> what it is for


class Finish(enum.StrEnum):
    """Why a model stopped."""

    COMPLETE = "complete"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    PROMPT_TOO_LONG = "prompt_too_long"


class ReplyFault(enum.StrEnum):
    """What makes a reply unusable."""

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
    """Tokens of one call. Reasoning counts as output; cached input counts as input and is told apart beside it."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True)
class Reply:
    """A model's answer, not yet parsed: it is journalled first.

    ``arguments`` is the raw JSON of the structured answer, None when the model wrote plain text. ``notes`` say what the
    model was not given as asked, such as a refused temperature.
    """

    text: str = ""
    arguments: str | None = None
    finish: Finish = Finish.COMPLETE
    usage: Usage = Usage()
    cost_usd: float | None = None
    model: str = ""
    notes: tuple[str, ...] = ()
