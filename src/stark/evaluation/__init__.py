"""How good it is: evaluators by name."""

from __future__ import annotations

from stark.interfaces import Evaluator
from stark.plugins import find_class
from stark.settings import EvaluationSettings


def open_evaluator(settings: EvaluationSettings) -> Evaluator:
    """The evaluator of that name."""
    evaluator: Evaluator = find_class("evaluator", settings.evaluator, BUILT_IN)(settings)
    return evaluator


def _local(settings: EvaluationSettings) -> Evaluator:
    from stark.evaluation.local import LocalEvaluator

    return LocalEvaluator(settings)


def _folder(settings: EvaluationSettings) -> Evaluator:
    from stark.evaluation.folder import FolderEvaluator

    return FolderEvaluator(settings)


BUILT_IN = {"local": _local, "folder": _folder}
