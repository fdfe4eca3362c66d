"""The evaluators that come with STARK, under the suite for evaluators. A replay only repeats stored reports."""

from __future__ import annotations

import pytest

from conformance.evaluator import EvaluatorConformance
from stark.core.settings import EvaluationSettings
from stark.evaluation.open import open_evaluator
from worker_fixture import serving


class TestLocal(EvaluatorConformance):
    @pytest.fixture
    def make(self):
        return lambda: open_evaluator(EvaluationSettings(evaluator="local", allow_weak_sandbox=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("served")
    with serving(place):
        yield place


class TestFolder(EvaluatorConformance):
    @pytest.fixture
    def make(self, folder):
        return lambda: open_evaluator(EvaluationSettings(evaluator="folder", folder=str(folder), worker_timeout_s=60.0))
