"""How good it is: evaluators by name."""

from __future__ import annotations

from stark.errors import UsageError
from stark.evaluation.replay import ReplayEvaluator, StoredReports
from stark.interfaces import Evaluator
from stark.plugins import find_class
from stark.settings import EvaluationSettings


def open_evaluator(settings: EvaluationSettings, stored_reports: StoredReports | None = None) -> Evaluator:
    """The evaluator of that name. ``stored_reports`` is how a replay reads the folder of another run."""
    if settings.evaluator == "replay":
        if stored_reports is None:
            raise UsageError("A replay needs a store to read, and there is none here.", "Open it through stark.api.")
        return ReplayEvaluator(settings, stored_reports)
    evaluator: Evaluator = find_class("evaluator", settings.evaluator, BUILT_IN)(settings)
    return evaluator


def _local(settings: EvaluationSettings) -> Evaluator:
    from stark.evaluation.local import LocalEvaluator

    return LocalEvaluator(settings)


def _folder(settings: EvaluationSettings) -> Evaluator:
    from stark.evaluation.folder import FolderEvaluator

    return FolderEvaluator(settings)


BUILT_IN = {"local": _local, "folder": _folder}
