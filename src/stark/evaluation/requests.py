"""TODO."""

from __future__ import annotations

from stark.core.errors import TaskError
from stark.core.settings import EvaluationSettings
from stark.core.task import Task
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest, Limits


def eval_request(task: Task, source: str, settings: EvaluationSettings, entry: str = "ModelNew") -> EvalRequest:
    """What the evaluator is asked about a candidate."""
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
        hint = " It does not agree with itself: it is random, depends on earlier calls, or rounds without bounds."
    elif "dtype" in report.log:
        hint = " A model of another precision is judged with --precision bf16 or fp16."
    raise TaskError(
        f"The task's own Model does not pass its evaluation: {report.outcome.replace('_', ' ')}.{hint} "
        f"{report.log[-1500:]}",
        "Fix the task file; nothing was spent.",
    )
