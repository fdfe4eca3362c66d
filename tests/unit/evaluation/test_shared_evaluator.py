"""Many runs, one evaluator: a reference is evaluated once, and candidates every time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fakes import TASK, HashEvaluator
from stark.core.errors import EvaluatorError, TaskError
from stark.core.settings import EvaluationSettings
from stark.evaluation.shared import SharedEvaluator
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing
from stark_worker.protocol.request import ALWAYS_MS, Entry, EvalRequest, Limits, Precision

REFERENCE = EvalRequest(TASK, TASK, entry=Entry.REFERENCE)
CANDIDATE = EvalRequest(TASK, "class ModelNew: ...")


class Faulty(HashEvaluator):
    """Raises the given faults before it works."""

    def __init__(self, *faults: Exception) -> None:
        super().__init__(EvaluationSettings())
        self._faults = list(faults)

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        if self._faults:
            raise self._faults.pop(0)
        return await super().evaluate(request)


def together(evaluator, *requests):
    async def ask():
        async with SharedEvaluator(evaluator) as shared:
            return await asyncio.gather(*map(shared.evaluate, requests), return_exceptions=True)

    return asyncio.run(ask())


def test_a_reference_is_judged_once_and_candidates_every_time():
    evaluator = HashEvaluator(EvaluationSettings())
    patient = replace(REFERENCE, limits=Limits(run_s=900.0))
    profiled = replace(REFERENCE, profile_below_ms=ALWAYS_MS)
    reports = together(evaluator, REFERENCE, CANDIDATE, profiled, patient, CANDIDATE)
    assert evaluator.evaluated.count(TASK) == 1
    assert evaluator.evaluated.count(CANDIDATE.candidate_source) == 2
    assert reports[0] == reports[2] == reports[3]


class Profiling(HashEvaluator):
    """Has a profile where one was asked for."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        return replace(await super().evaluate(request), profile="all of it" if request.profile_below_ms else None)


def test_a_reference_has_a_profile_for_later_runs():
    plain, profiled = together(
        Profiling(EvaluationSettings()), REFERENCE, replace(REFERENCE, profile_below_ms=ALWAYS_MS)
    )
    assert plain.profile == profiled.profile == "all of it"


def test_other_conditions_are_another_reference():
    evaluator = HashEvaluator(EvaluationSettings())
    together(evaluator, REFERENCE, replace(REFERENCE, precision=Precision.BF16))
    assert evaluator.evaluated.count(TASK) == 2


def test_a_broken_task_is_broken_for_everybody_but_a_fault_may_pass():
    first, second = together(Faulty(TaskError("It is broken.")), REFERENCE, REFERENCE)
    assert first is second
    assert isinstance(first, TaskError)
    first, second = together(Faulty(EvaluatorError("The GPU fell off the bus.")), REFERENCE, REFERENCE)
    assert isinstance(first, EvaluatorError)
    assert second.outcome is Outcome.OK


def test_what_an_earlier_session_found_is_taken_over():
    known = EvalReport(Outcome.OK, Timing((7.0,)))
    shared = SharedEvaluator(HashEvaluator(EvaluationSettings()))
    shared.add_reference(REFERENCE, known)
    assert asyncio.run(shared.evaluate(REFERENCE)) is known


@pytest.mark.parametrize("request_", [REFERENCE, CANDIDATE])
def test_it_is_an_evaluator_like_the_one_behind_it(request_):
    behind = HashEvaluator(EvaluationSettings())
    (report,) = together(behind, request_)
    assert report == asyncio.run(behind.evaluate(request_))
