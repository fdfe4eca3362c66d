"""TODO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stark.core.records import Final
from stark.core.settings import EvaluationSettings
from stark.core.task import Task
from stark.core.tree import ROOT_ID
from stark.evaluation.baseline_cache import KeptBaselines
from stark.evaluation.confirmation import hold_final
from stark.evaluation.open import open_evaluator
from stark.evaluation.requests import check_reference, eval_request
from stark.store.lookup import stored_reports
from stark_worker.protocol.baselines import BASELINES, COMPILE_S, EAGER, baseline_source
from stark_worker.protocol.report import DeviceFacts, EvalReport


async def judge(task: Task, candidate: str, settings: EvaluationSettings) -> tuple[EvalReport, EvalReport]:
    """The reports on a task's own model and on a candidate for it."""
    async with open_evaluator(settings, stored_reports) as evaluator:
        reference = await evaluator.evaluate(eval_request(task, task.source, settings, entry="Model"))
        return reference, await evaluator.evaluate(replace(eval_request(task, candidate, settings), labelled=True))


async def judge_finally(
    task: Task, candidate: str, settings: EvaluationSettings, stranger: bool = False
) -> tuple[DeviceFacts, Final]:
    """What is measured on, and a candidate judged as the winner of a run is: by both scores, beside the reference.

    The reference of a ``stranger`` is confined as a candidate is.
    """
    async with open_evaluator(settings, stored_reports) as evaluator:
        request = replace(eval_request(task, candidate, settings), stranger=stranger)
        return await evaluator.device(), await hold_final(evaluator, request, ROOT_ID + 1)


async def measure_baselines(
    task: Task,
    settings: EvaluationSettings,
    told: Callable[[str, EvalReport], None] = lambda name, report: None,
    names: Sequence[str] = BASELINES,
    fresh: bool = False,
    in_turns: bool = False,
) -> dict[str, EvalReport]:
    """Eager and torch.compile by the same path as any candidate, or as any winner in turns with the reference; each is
    told as it comes.

    What was measured before on the same device with the same versions is not measured again, unless ``fresh``.
    """
    patient = settings.model_copy(update={"run_s": max(settings.run_s, COMPILE_S)})
    found = {}
    async with open_evaluator(patient, stored_reports) as evaluator:
        kept = KeptBaselines(await evaluator.device())
        for name in names:
            source, entry = baseline_source(task.source, name)
            request = eval_request(task, source, patient, entry)
            request = replace(request, rival_source=task.source) if in_turns else request
            known = None if fresh else kept.find(request)
            found[name] = known or await evaluator.evaluate(request)
            kept.keep(request, found[name])
            told(name, found[name])
            if name == EAGER:
                check_reference(found[name])
    return found
