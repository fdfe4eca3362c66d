"""What can go wrong without being the candidate's fault. No torch."""

from __future__ import annotations

import enum
from typing import ClassVar


class TaskFault(Exception):
    """The task itself does not work; no candidate is to blame."""

    kind: ClassVar[str] = "task"  # how messages between processes name it


class MachineryFault(Exception):
    """The machine cannot judge: never the candidate's fault."""

    kind: ClassVar[str] = "machinery"


class SandboxTooWeak(MachineryFault):
    """Candidates cannot be locked in as far as is accepted; trying again changes nothing."""

    kind: ClassVar[str] = "sandbox"


class RefereeDied(MachineryFault):
    """The process that judged ended without an answer. Happening again and again, it is the candidate's doing."""

    kind: ClassVar[str] = "died"


class RefereeSilent(MachineryFault):
    """The process that judged took longer than a candidate is allowed to."""

    kind: ClassVar[str] = "silent"


FAULTS: dict[str, type[Exception]] = {
    fault.kind: fault for fault in (TaskFault, MachineryFault, SandboxTooWeak, RefereeDied, RefereeSilent)
}


def fault_of(kind: object, message: object) -> Exception:
    """What another process named by its kind; a kind nobody here knows is the machinery's."""
    return FAULTS.get(str(kind), MachineryFault)(str(message))


class Outcome(enum.StrEnum):
    """How an attempt ended. Every outcome but ``ok`` counts as failed."""

    OK = "ok"
    UNUSABLE_REPLY = "unusable_reply"
    REJECTED = "rejected"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    WRONG_RESULT = "wrong_result"
    TIMEOUT = "timeout"
    CRASH = "crash"
    OUT_OF_MEMORY = "out_of_memory"


class Failure(Exception):
    """The candidate's fault: ends the evaluation with this outcome."""

    def __init__(self, outcome: Outcome, log: str, rule: str | None = None) -> None:
        super().__init__(log)
        self.outcome, self.log, self.rule = outcome, log, rule
