"""Judges the variants of one candidate: each is timed briefly, and the fastest one is judged in full. No torch.

Every variant is an ordinary candidate with a process, inputs and a library of its own, so none can gain from another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, VariantResult, sum_phases
from stark_worker.protocol.request import EvalRequest
from stark_worker.scheduler.constants import ConstantsMissing, with_constants

MAX_FULL = 3  # variants that are judged in full, if the fastest ones turn out to be wrong there

Judge = Callable[[EvalRequest], Awaitable[EvalReport]]
Build = Callable[[EvalRequest], Awaitable[EvalReport | None]]


def split(request: EvalRequest) -> list[EvalRequest]:
    """Return the request for each variant in full, or the request itself if it has none.

    Raise ``ConstantsMissing`` if the source lacks a constant.
    """
    if not request.variants:
        return [request]
    sources = [with_constants(request.candidate_source, each) for each in request.variants]
    return [replace(request, candidate_source=source, variants=()) for source in sources]


def refuse(fault: ConstantsMissing) -> EvalReport:
    """Return the report on a candidate without the constants of its variants."""
    return EvalReport(Outcome.COMPILE_ERROR, log=str(fault), built=False)


async def build_all(requests: Sequence[EvalRequest], build: Build) -> list[EvalReport | None]:
    """Build all together. The first one goes ahead: what differs in no compiled line is then built once."""
    first, *others = requests
    return [await build(first), *await asyncio.gather(*map(build, others))]


async def judge_all(
    request: EvalRequest, requests: Sequence[EvalRequest], built: Sequence[EvalReport | None], judge: Judge
) -> EvalReport:
    """Judge what was built: a single candidate in full; of several the fastest one."""
    if not request.variants:
        return built[0] or await judge(requests[0])
    briefly = [
        failed
        or await judge(replace(one, is_brief=True, opponent_source=None, with_labels=False, profile_below_ms=0.0))
        for one, failed in zip(requests, built, strict=True)
    ]
    fastest = rank(briefly)
    winner, report = (fastest or [0])[0], briefly[0]
    spent = list(briefly)
    for winner in fastest[:MAX_FULL]:
        report = await judge(requests[winner])
        spent.append(report)
        if report.timing is not None:
            break
    results = tuple(
        VariantResult(constants, one.outcome, one.timing.median_ms if one.timing else None, number == winner)
        for number, (constants, one) in enumerate(zip(request.variants, briefly, strict=True))
    )
    phases, duration_s = sum_phases(one.phases_s for one in spent), sum(one.duration_s for one in spent)
    return replace(report, variants=results, phases_s=phases, duration_s=duration_s)


def rank(reports: Sequence[EvalReport]) -> list[int]:
    """Return the numbers of the correct ones, the fastest first."""
    timed = [(one.timing.median_ms, number) for number, one in enumerate(reports) if one.timing is not None]
    return [number for _, number in sorted(timed)]
