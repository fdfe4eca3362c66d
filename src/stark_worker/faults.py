"""What can go wrong without being the candidate's fault. No torch."""

from __future__ import annotations


class TaskFault(Exception):
    """The task itself does not work; no candidate is to blame."""


class MachineryFault(Exception):
    """The machine cannot judge: never the candidate's fault."""


class RefereeDied(MachineryFault):
    """The process that judged ended without an answer. Happening again and again, it is the candidate's doing."""


class RefereeSilent(MachineryFault):
    """The process that judged took longer than a candidate is allowed to."""
