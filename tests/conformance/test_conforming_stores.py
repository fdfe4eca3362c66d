"""The stores that come with STARK, under the suites for stores."""

from __future__ import annotations

import pytest

from conformance.store import StoreConformance, StoreReaderConformance
from stark.store.open import open_store


class TestSqliteStore(StoreConformance, StoreReaderConformance):
    @pytest.fixture
    def reopen(self, tmp_path):
        return lambda: open_store(tmp_path / "run", write=True)
