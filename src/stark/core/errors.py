"""Every failure a user can meet. Each message states what happened and what to do next.

StarkError
├── UsageError            wrong input of the user; nothing was started                          exit 2
│   ├── SettingsError         an unknown or ill-typed setting
│   ├── KeyMissing            no key is set for a model
│   ├── TaskError             the task file is missing, broken, or not a task
│   │   └── DegenerateTask        ... or its check accepts answers that compute nothing
│   └── BundleError           an archive that is damaged, changed, or no bundle
├── ModelError            the chat model or its provider                                        exit 5
│   ├── ModelRefused          the provider will never accept this call (key, name, credit)
│   │   └── PromptRefused         ... because of this one prompt
│   └── ModelUnavailable      the provider did not answer after all retries; nothing was charged
│       └── ReplyLost             ... or its answer never arrived, and may have been charged
├── EvaluatorError        the evaluating machine, never the candidate                           exit 6
└── StoreError            the run folder                                                        exit 7
    ├── StoreLocked           another process is writing to it
    ├── StoreTooNew           written by a newer version
    └── StoreDamaged          not readable as a store
"""

from __future__ import annotations

from typing import ClassVar


class StarkError(Exception):
    """An error for the user: one sentence on what happened, one on what to do next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.message} {self.next_step}".strip()


class UsageError(StarkError):
    exit_code = 2


class SettingsError(UsageError):
    pass


class KeyMissing(UsageError):
    """A model that lacks only its key."""


class TaskError(UsageError):
    pass


class DegenerateTask(TaskError):
    def __init__(self, why: str) -> None:
        super().__init__(
            f"The task tests nothing: {why}",
            "Change its inputs, or search anyway with --set evaluation.allow_degenerate=true.",
        )
        self.why = why


class BundleError(UsageError):
    pass


class ModelError(StarkError):
    exit_code = 5


class ModelRefused(ModelError):
    pass


class PromptRefused(ModelRefused):
    pass


class ModelUnavailable(ModelError):
    pass


class ReplyLost(ModelUnavailable):
    pass


class EvaluatorError(StarkError):
    exit_code = 6


class StoreError(StarkError):
    exit_code = 7


class StoreLocked(StoreError):
    pass


class StoreTooNew(StoreError):
    pass


class StoreDamaged(StoreError):
    pass
