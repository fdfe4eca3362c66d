"""The suite for policies on every built-in one."""

from __future__ import annotations

import pytest

from conformance.policy import PolicyConformance
from stark.search import POLICIES, open_policy
from stark.settings import SearchSettings


class TestBuiltIn(PolicyConformance):
    @pytest.fixture(params=sorted(POLICIES))
    def policy(self, request):
        return open_policy(request.param, SearchSettings())
