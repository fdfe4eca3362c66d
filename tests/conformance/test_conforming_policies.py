"""The suite for policies on every built-in one."""

from __future__ import annotations

import pytest

from conformance.policy import PolicyConformance
from stark.core.settings import SearchSettings
from stark.search.policies import POLICIES, open_policy


class TestBuiltIn(PolicyConformance):
    @pytest.fixture(params=sorted(POLICIES))
    def policy(self, request):
        return open_policy(request.param, SearchSettings())
