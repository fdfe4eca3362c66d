"""TODO."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class State(enum.StrEnum):
    """What came of trying something. What is not needed may be missing: a run works without it."""

    OK = "ok"
    MISSING = "missing"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True)
class Finding:
    """One thing that was tried; ``fix`` is how to get it where it is not there."""

    name: str
    state: State
    detail: str
    fix: str = ""


def can_work(findings: Sequence[Finding]) -> bool:
    """Whether nothing is missing."""
    return all(finding.state is not State.MISSING for finding in findings)
