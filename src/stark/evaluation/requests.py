"""Makes requests for an evaluator, and checks the report on a task's own model."""

from __future__ import annotations

from stark.core.errors import TaskError
from stark.core.settings import EvaluationSettings
from stark.core.task import Task
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import Entry, EvalRequest, Limits


def make_request(task: Task, source: str, settings: EvaluationSettings, entry: Entry = Entry.CANDIDATE) -> EvalRequest:
    """Return the request to evaluate a source on a task."""
    return EvalRequest(
        task_source=task.source,
        candidate_source=source,
        entry=entry,
        target=settings.target,
        precision=settings.precision,
        score=settings.score,
        kernelbench_version=settings.kernelbench_version,
        atol=settings.atol,
        rtol=settings.rtol,
        tf32=settings.tf32,
        limits=Limits(settings.build_s, settings.run_s),
    )


def check_reference(report: EvalReport) -> None:
    """Refuse a task whose own model does not work."""
    if report.timing is not None:
        return
    hint = ""
    if report.outcome is Outcome.WRONG_RESULT:
        hint = " Two calls gave different results: it is random, depends on earlier calls, or rounds without bounds."
    elif report.dtype_mismatch:
        hint = " If it has another precision, add --precision bf16 or fp16."
    raise TaskError(
        f"The task's own Model fails its evaluation: {report.outcome.replace('_', ' ')}.{hint} {report.log[-1500:]}",
        "Fix the task file; nothing was spent.",
    )
