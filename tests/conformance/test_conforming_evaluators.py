"""The evaluators of the project, each put through the suite for third parties."""

from __future__ import annotations

import pytest

from conformance.evaluator import EvaluatorConformance
from stark.evaluation import open_evaluator
from stark.settings import EvaluationSettings


class TestLocal(EvaluatorConformance):
    @pytest.fixture
    def make(self):
        return lambda: open_evaluator(EvaluationSettings(evaluator="local", allow_weak_sandbox=True))
