"""Whose doing it is when judging itself fails; every evaluator asks here, so that all say the same. No torch.

What hangs or ends the process that judges is the candidate's doing where the task's own model did neither.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from stark_worker.protocol.baselines import COMPILE_S, baseline_source
from stark_worker.protocol.codec import ProtocolError
from stark_worker.protocol.errors import MachineryFault, Outcome, RefereeDied, RefereeSilent, SandboxTooWeak
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest

RETRIES = 1  # where nobody says how many


Judge = Callable[[EvalRequest], Awaitable[EvalReport]]


async def judge_with_retries(judge: Judge, request: EvalRequest, retries: int = RETRIES) -> EvalReport:
    """One report. Faults of the machinery are tried again; those that stay and are nobody else's are raised."""
    by_candidate = not request.is_reference
    for tries_left in range(retries, -1, -1):
        try:
            return await judge(request)
        except SandboxTooWeak:
            raise
        except RefereeSilent as silence:
            if by_candidate:  # the reference was measure_baselines in time
                return EvalReport(Outcome.TIMEOUT, log=str(silence))
            raise
        except (MachineryFault, ProtocolError, OSError) as fault:
            if tries_left:
                continue
            if by_candidate and isinstance(fault, RefereeDied):  # again and again, and only with this candidate
                return EvalReport(Outcome.CRASH, log=f"The process that judged the candidate died every time. {fault}")
            raise
    raise AssertionError("unreachable")


async def measure_baselines(
    judge: Judge, request: EvalRequest, names: Sequence[str]
) -> AsyncIterator[tuple[str, EvalReport]]:
    """Each of these baselines of a request's task, as it comes."""
    patient = replace(request, limits=replace(request.limits, run_s=max(request.limits.run_s, COMPILE_S)))
    for name in names:
        source, entry = baseline_source(request.task_source, name)
        yield name, await judge_with_retries(judge, replace(patient, candidate_source=source, entry=entry))
