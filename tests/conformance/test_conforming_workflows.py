"""The suite for workflows on the built-in ones."""

from __future__ import annotations

import pytest

from conformance.workflow import WorkflowConformance, team
from stark.agents.workflows import WORKFLOWS


class TestBuiltIn(WorkflowConformance):
    @pytest.fixture(params=sorted(WORKFLOWS))
    def workflow(self, request):
        return WORKFLOWS[request.param](team("informed" if request.param == "informed" else "stark"))
