"""The results of trying the machine out."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


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


def can_work(findings: Sequence[Finding]) -> bool:
    """True if nothing is missing."""
    return all(finding.state is not State.MISSING for finding in findings)
