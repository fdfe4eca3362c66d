"""Faults and outcomes.

A ``Failure`` is the candidate's fault and becomes an ``Outcome`` in a report. All other faults here are exceptions that
blame no candidate:

TaskFault
MachineryFault
├── SandboxTooWeak
├── GpuUnhealthy
├── RefereeDied
└── RefereeSilent
"""

from __future__ import annotations

import enum
from typing import ClassVar


class TaskFault(Exception):
    """The task itself does not work."""

    kind: ClassVar[str] = "task"  # its name in messages between processes


class MachineryFault(Exception):
    """The machine cannot judge."""

    kind: ClassVar[str] = "machinery"


class SandboxTooWeak(MachineryFault):
    """The sandbox is weaker than required; a retry changes nothing."""

    kind: ClassVar[str] = "sandbox"


class GpuUnhealthy(MachineryFault):
    """The GPU failed its health check or raised an error outside any candidate."""

    kind: ClassVar[str] = "unhealthy"


class RefereeDied(MachineryFault):
    """The referee's process ended without an answer. If it does so at every retry, the candidate is to blame."""

    kind: ClassVar[str] = "died"


class RefereeSilent(MachineryFault):
    """The referee's process took longer than all deadlines of a candidate together."""

    kind: ClassVar[str] = "silent"


FAULTS: dict[str, type[Exception]] = {
    fault.kind: fault for fault in (TaskFault, MachineryFault, SandboxTooWeak, GpuUnhealthy, RefereeDied, RefereeSilent)
}


def make_fault(kind: object, message: object) -> Exception:
    """Return the exception for a fault in a message; an unknown kind is a MachineryFault."""
    return FAULTS.get(str(kind), MachineryFault)(str(message))


class Outcome(enum.StrEnum):
    """The end of an attempt. Every outcome but ``ok`` counts as failed."""

    OK = "ok"
    UNUSABLE_REPLY = "unusable_reply"
    REJECTED = "rejected"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    WRONG_RESULT = "wrong_result"
    TIMEOUT = "timeout"
    HANGS = "hangs"
    CRASH = "crash"
    OUT_OF_MEMORY = "out_of_memory"


class Failure(Exception):
    """The candidate's fault, which ends the evaluation with this outcome."""

    def __init__(self, outcome: Outcome, log: str, rule: str | None = None, dtype_mismatch: bool = False) -> None:
        super().__init__(log)
        self.outcome, self.log, self.rule, self.dtype_mismatch = outcome, log, rule, dtype_mismatch
