"""Opens evaluators by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stark.core.errors import UsageError
from stark.core.interfaces import Evaluator
from stark.core.plugins import find_class
from stark.core.settings import EvaluationSettings
from stark.evaluation.replay import ReplayEvaluator, StoredReports


def open_evaluator(settings: EvaluationSettings, load_reports: StoredReports | None = None) -> Evaluator:
    """Open the evaluator that the settings name. A replay reads another run's folder with ``load_reports``."""
    if settings.evaluator == "replay":
        if load_reports is None:
            raise UsageError(
                "The replay evaluator needs a function that reads a store.", "Open it through stark.run.api."
            )
        return ReplayEvaluator(settings, load_reports)
    evaluator: Evaluator = find_class("evaluator", settings.evaluator, BUILT_IN)(settings)
    return evaluator


@asynccontextmanager
async def borrow_or_open(
    borrowed: Evaluator | None, settings: EvaluationSettings, load_reports: StoredReports | None = None
) -> AsyncIterator[Evaluator]:
    """Use an evaluator that the caller keeps open, or open one for as long as it is used."""
    if borrowed is not None:
        yield borrowed
        return
    async with open_evaluator(settings, load_reports) as evaluator:
        yield evaluator


def _local(settings: EvaluationSettings) -> Evaluator:
    from stark.evaluation.local import LocalEvaluator

    return LocalEvaluator(settings)


def _folder(settings: EvaluationSettings) -> Evaluator:
    from stark.evaluation.folder import FolderEvaluator

    return FolderEvaluator(settings)


def _ray(settings: EvaluationSettings) -> Evaluator:
    from stark.evaluation.cluster.evaluator import RayEvaluator

    return RayEvaluator(settings)


BUILT_IN = {"local": _local, "folder": _folder, "ray": _ray}
