"""Retries machine faults, and blames the candidate if it hangs or kills the referee. No torch.

The task's own model did neither, so the candidate is the cause. All evaluators use this code.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from stark_worker.protocol.baselines import COMPILE_S, baseline_source
from stark_worker.protocol.codec import ProtocolError
from stark_worker.protocol.errors import MachineryFault, Outcome, RefereeDied, RefereeSilent, SandboxTooWeak
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest

RETRIES = 1

Judge = Callable[[EvalRequest], Awaitable[EvalReport]]


async def judge_with_retries(judge: Judge, request: EvalRequest, retries: int = RETRIES) -> EvalReport:
    """Judge a request. Retry machine faults; raise the last one, unless the candidate is to blame."""
    by_candidate = not request.is_reference
    for tries_left in range(retries, -1, -1):
        try:
            return await judge(request)
        except SandboxTooWeak:
            raise
        except RefereeSilent as silence:
            if by_candidate:  # the reference was measured in time
                return EvalReport(Outcome.TIMEOUT, log=str(silence))
            raise
        except (MachineryFault, ProtocolError, OSError) as fault:
            if tries_left:
                continue
            if by_candidate and isinstance(fault, RefereeDied):  # every time, and only with this candidate
                return EvalReport(Outcome.CRASH, log=f"The process that judged the candidate died every time. {fault}")
            raise
    raise AssertionError("unreachable")


async def measure_baselines(
    judge: Judge, request: EvalRequest, names: Sequence[str]
) -> AsyncIterator[tuple[str, EvalReport]]:
    """Measure these baselines of a request's task, and yield each report as it comes."""
    base = replace(request, limits=replace(request.limits, run_s=max(request.limits.run_s, COMPILE_S)))
    for name in names:
        source, entry = baseline_source(request.task_source, name)
        yield name, await judge_with_retries(judge, replace(base, candidate_source=source, entry=entry))
