"""Turns the faults of a worker into errors for the user. Local and remote workers share the same words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stark.core.errors import EvaluatorError, TaskError
from stark_worker.protocol.codec import ProtocolError
from stark_worker.protocol.errors import MachineryFault, RefereeSilent, SandboxTooWeak, TaskFault

TRY_AGAIN = "give the command again, or `stark resume` if a run had begun"


@dataclass(frozen=True)
class FaultTranslator:
    """Knows the machine's name in messages, and the commands that examine it and allow a weak sandbox there."""

    machine: str
    doctor_command: str
    allow_command: str

    @contextmanager
    def translate(self) -> Iterator[None]:
        """Raise each fault of the worker as the error that it is for the user."""
        try:
            yield
        except TaskFault as fault:
            raise TaskError(
                f"The task's own code does not work. {fault}", "Fix the task file; no kernel was judged."
            ) from fault
        except SandboxTooWeak as fault:
            raise EvaluatorError(
                f"{fault} No candidate was loaded.",
                f"To see what is missing, type: {self.doctor_command}. To accept a weak sandbox, use "
                f"{self.allow_command}",
            ) from fault
        except RefereeSilent as silence:
            raise EvaluatorError(
                str(silence),
                "Most likely the task's reference is very slow here. Make the task smaller, or raise the deadline with "
                "--set evaluation.run_s=SECONDS.",
            ) from silence
        except (MachineryFault, ProtocolError, OSError) as fault:
            raise EvaluatorError(
                f"{self.machine} could not evaluate; this is not the candidate's fault: {fault}",
                f"Fix that, then {TRY_AGAIN}. `{self.doctor_command}` tries everything that is needed.",
            ) from fault
