"""Judging without a search: one candidate, the baselines of a task, or its speed of light.

Each opens an evaluator, unless the caller passes one that it keeps open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stark.core.bound import SpeedOfLight, speed_of_light
from stark.core.errors import EvaluatorError
from stark.core.interfaces import Evaluator
from stark.core.records import Final
from stark.core.settings import EvaluationSettings
from stark.core.task import Task
from stark.core.tree import ROOT_ID
from stark.evaluation.baseline_cache import BaselineCache
from stark.evaluation.confirmation import confirm_candidate
from stark.evaluation.open import borrow_or_open
from stark.evaluation.requests import check_reference, make_request
from stark.run.final_round import with_drop_in
from stark.store.lookup import load_reports
from stark_worker.protocol import report_text
from stark_worker.protocol.baselines import BASELINES, COMPILE_S, EAGER, baseline_source
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import Entry


@dataclass(frozen=True, repr=False)
class Judged:
    """The verdict on a kernel: its report, and the report on the original."""

    reference: EvalReport
    report: EvalReport

    @property
    def correct(self) -> bool:
        return self.report.timing is not None

    @property
    def speedup(self) -> float | None:
        """The kernel's speed relative to the original's."""
        timings = self.reference.timing, self.report.timing
        return timings[0].median_ms / timings[1].median_ms if timings[0] and timings[1] else None

    def __repr__(self) -> str:
        reference = report_text.format_verdict(self.reference)
        time_ms = self.reference.timing.median_ms if self.reference.timing else None
        verdict = report_text.format_verdict(self.report, time_ms)
        return f"<stark.Judged: {'correct, ' if self.correct else ''}{verdict}; original {reference}>"


class Baselines(dict[str, EvalReport]):
    """The reports on eager PyTorch and torch.compile, by name."""

    def __repr__(self) -> str:
        parts = (f"{name} {report_text.format_verdict(report)}" for name, report in self.items())
        return f"<stark.Baselines: {'; '.join(parts)}>"


async def judge(
    task: Task,
    candidate: str,
    settings: EvaluationSettings,
    *,
    variants: Sequence[dict[str, int]] = (),
    evaluator: Evaluator | None = None,
    in_turns: bool = False,
) -> tuple[EvalReport, EvalReport]:
    """Return the reports on a task's own model and on a candidate, or on its fastest variant.

    With ``in_turns`` the candidate is timed in turns with the model.
    """
    async with borrow_or_open(evaluator, settings, load_reports) as judging:
        reference = await judging.evaluate(make_request(task, task.source, settings, entry=Entry.REFERENCE))
        request = replace(make_request(task, candidate, settings), with_labels=True, variants=tuple(variants))
        request = replace(request, opponent_source=task.source) if in_turns else request
        return reference, await judging.evaluate(request)


async def judge_as_winner(
    task: Task,
    candidate: str,
    settings: EvaluationSettings,
    untrusted_task: bool = False,
    evaluator: Evaluator | None = None,
) -> tuple[DeviceFacts, Final]:
    """Judge a candidate as the winner of a run: by both scores, in turns with the reference.

    Return the device and the result. The reference of an ``untrusted_task`` is confined like a candidate.
    """
    async with borrow_or_open(evaluator, settings, load_reports) as judging:
        request = replace(make_request(task, candidate, settings), untrusted_task=untrusted_task)
        final = await confirm_candidate(judging, request, ROOT_ID + 1)
        return await judging.device(), await with_drop_in(judging, request, task.name, final)


async def measure_baselines(
    task: Task,
    settings: EvaluationSettings,
    on_report: Callable[[str, EvalReport], None] = lambda name, report: None,
    names: Sequence[str] = BASELINES,
    fresh: bool = False,
    in_turns: bool = False,
    evaluator: Evaluator | None = None,
) -> dict[str, EvalReport]:
    """Measure eager and torch.compile as candidates, or ``in_turns`` with the reference as a winner.

    Unless ``fresh``, reuse measurements of the same device and versions.
    """
    slow = settings.model_copy(update={"run_s": max(settings.run_s, COMPILE_S)})
    found = {}
    async with borrow_or_open(evaluator, slow, load_reports) as judging:
        cache = BaselineCache(await judging.device())
        for name in names:
            source, entry = baseline_source(task.source, name)
            request = make_request(task, source, slow, entry)
            request = replace(request, opponent_source=task.source) if in_turns else request
            known = None if fresh else cache.find(request)
            found[name] = known or await judging.evaluate(request)
            cache.keep(request, found[name])
            on_report(name, found[name])
            if name == EAGER:
                check_reference(found[name])
    return found


@dataclass(frozen=True, repr=False)
class MeasuredBound:
    """A task's bound, and the report on its own model, whose time reaches ``share`` of it."""

    limit: SpeedOfLight
    reference: EvalReport

    @property
    def share(self) -> float | None:
        timing = self.reference.timing
        return self.limit.share(timing.median_ms) if timing else None

    def __repr__(self) -> str:
        share = "" if self.share is None else f"; the original reaches {self.share:.0%} of it"
        bound = self.reference.bound
        return f"<stark.MeasuredBound: {'' if bound is None else report_text.format_bound(bound)}{share}>"


async def measure_bound(
    task: Task, settings: EvaluationSettings, fresh: bool = False, evaluator: Evaluator | None = None
) -> MeasuredBound:
    """Evaluate a task's own model and return its bound. Unless ``fresh``, reuse a measurement of the same device."""
    report = (await measure_baselines(task, settings, names=[EAGER], fresh=fresh, evaluator=evaluator))[EAGER]
    if report.bound is None and not fresh:  # an earlier version kept the report
        report = (await measure_baselines(task, settings, names=[EAGER], fresh=True, evaluator=evaluator))[EAGER]
    limit = speed_of_light(report.bound, None)
    if limit is None:
        raise EvaluatorError(
            "The evaluator reported no bound for this task: it could not measure the peaks of its device.",
            "Update the worker, and try its machine out with: stark doctor",
        )
    return MeasuredBound(limit, report)
