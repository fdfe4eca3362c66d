"""How faults of a worker are told to the user, alike whether the worker is this machine or behind a folder."""

from __future__ import annotations

from dataclasses import dataclass

from stark.core.errors import EvaluatorError, TaskError
from stark_worker.protocol.codec import ProtocolError
from stark_worker.protocol.errors import MachineryFault, RefereeSilent, SandboxTooWeak, TaskFault
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest
from stark_worker.scheduler.retry import Judge, judge_patiently

AGAIN = "give the command again, or `stark resume` where a run had begun"  # which only the command knows


@dataclass(frozen=True)
class Teller:
    """``machine`` is what the user calls the one that judges; ``doctor`` and ``allow`` are to be typed for it."""

    machine: str
    doctor: str
    allow: str

    async def report(self, judge: Judge, request: EvalRequest, retries: int) -> EvalReport:
        """One report; whatever is no fault of the candidate is raised as what it means for the run."""
        try:
            return await judge_patiently(judge, request, retries)
        except TaskFault as fault:
            raise TaskError(
                f"The task does not work by itself. {fault}", "Fix the task file; no kernel was judged."
            ) from fault
        except SandboxTooWeak as fault:
            raise EvaluatorError(
                f"{fault} No candidate was loaded.",
                f"`{self.doctor}` tries every control. {self.allow} accepts the level weak, but never none.",
            ) from fault
        except RefereeSilent as silence:
            raise EvaluatorError(
                str(silence),
                "Most likely the task's reference is very slow here; make the task smaller or raise evaluation.run_s.",
            ) from silence
        except (MachineryFault, ProtocolError, OSError) as fault:
            raise self.no_fault_of_the_candidate(fault) from fault

    def no_fault_of_the_candidate(self, fault: Exception) -> EvaluatorError:
        return EvaluatorError(
            f"{self.machine} could not evaluate, which is no fault of the candidate: {fault}",
            f"Put that right and {AGAIN}. `{self.doctor}` tries everything that is needed.",
        )
