"""The results of trying the machine out."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Sequence
from dataclasses import dataclass

from stark_worker.protocol.codec import ProtocolError, from_json


class State(enum.StrEnum):
    """The result of one try. A run works without a thing that is not needed."""

    OK = "ok"
    MISSING = "missing"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True)
class Finding:
    """One thing that was tried; ``fix`` is how to get it if it is missing."""

    name: str
    state: State
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Begun:
    """The name of the thing that is tried next."""

    begins: str


def parse_line(line: str) -> Finding | Begun | None:
    """Return the record in a line of the doctor's output; None for any other line."""
    with contextlib.suppress(ProtocolError):
        return from_json(Finding, line)
    with contextlib.suppress(ProtocolError):
        return from_json(Begun, line)
    return None


def can_work(findings: Sequence[Finding]) -> bool:
    """True if nothing is missing."""
    return all(finding.state is not State.MISSING for finding in findings)
