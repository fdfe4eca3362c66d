"""The stores that come with STARK, under the suite for stores."""

from __future__ import annotations

import pytest

from conformance.store import StoreConformance
from stark.store.open import open_store


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def reopen(self, tmp_path):
        return lambda: open_store(tmp_path / "run", write=True)
