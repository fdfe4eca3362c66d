"""Messages between the coordinator and its gateway to the cluster, one line of JSON each."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True)
class Order:
    """The cluster to use; the first message to a gateway. ``kind`` is the device kind that a run began on."""

    target: str
    address: str | None = None
    device_kind: str | None = None
    lanes: int | None = None
    allow_weak_sandbox: bool = False
    timeout_s: float = 600.0
    kind: str | None = None


@dataclass(frozen=True)
class Question:
    """A request to judge, as JSON; without one, the question of that number is withdrawn."""

    number: int
    request: str | None = None
    avoid: tuple[str, ...] = ()


class Did(enum.StrEnum):
    """The kinds of a gateway's messages."""

    READY = "ready"  # ``text`` holds the facts of the device
    REPORT = "report"
    FAULT = "fault"  # of the kind ``fault``
    LOST = "lost"  # no lane answered in time
    NOTE = "note"
    FAILED = "failed"  # the cluster cannot be used


@dataclass(frozen=True)
class Event:
    """A message of the gateway. ``number`` is that of the question."""

    did: Did
    text: str = ""
    number: int = 0
    fault: str = ""
    lane: str = ""
    next_step: str = ""
