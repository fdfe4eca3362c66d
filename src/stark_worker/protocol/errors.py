"""What can go wrong without being the candidate's fault. No torch."""

from __future__ import annotations

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
