"""Stores of every earlier schema version: each is shown and resumed, with the numbers that its own version gave.

Each file is an interrupted run of five attempts, three of them made, one begun. The version that introduced the schema
wrote it, with settings under their old names.
"""

from __future__ import annotations

import lzma
import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

from paths import ROOT
from stark.cli.main import load_app
from stark.run.api import resume
from stark.store.lookup import only_run, settings_of
from stark.store.open import open_store

STORES = ROOT / "tests" / "data" / "stores"
EARLY = [(0, None, 10.0), (1, 0, 19.38), (2, 0, 14.03), (3, 0, 1.62), (4, 3, 9.25), (5, 4, 17.53)]
LATE = [(0, None, 10.0), (1, 0, 13.21), (2, 0, 5.31), (3, 2, None), (4, 2, 9.77), (5, 4, None)]
DROP_INS = [(0, None, 10.0), (1, 0, 9.54), (2, 1, 12.14), (3, 1, 9.62), (4, 1, 15.26), (5, 1, None)]
EXPECTED = {1: EARLY, 2: EARLY, 3: EARLY, 4: LATE, 5: LATE, 7: DROP_INS}  # by schema version: id, parent, milliseconds


@pytest.fixture(params=EXPECTED)
def stored(request, tmp_path):
    """A version, and a folder with its store."""
    content = lzma.decompress((STORES / f"v{request.param}.db.xz").read_bytes())
    (tmp_path / "stark.db").write_bytes(content)
    return request.param, tmp_path


def test_every_version_has_a_file(stored):
    version, folder = stored
    with closing(sqlite3.connect(folder / "stark.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (version,)


def test_an_old_store_is_resumed_with_the_same_numbers(stored):
    version, folder = stored
    result = resume(folder)
    with closing(open_store(folder, write=False)) as store:
        record = only_run(store, folder)
        nodes = [(node.id, node.parent_id, node.runtime_ms) for node in store.nodes(record.id)]
        judged = [(each.id, each.runtime_ms) for each in store.judgements(record.id)]
    assert nodes == EXPECTED[version]
    assert judged == [(number, runtime_ms) for number, _, runtime_ms in nodes]
    assert result.best.id == min(EXPECTED[version][1:], key=lambda node: node[2] or 99)[0]
    assert settings_of(record).windows.cap_includes_root
    assert settings_of(record).anchors.max_retries == 2


def test_an_old_store_is_shown_and_stays_as_it_is(stored):
    version, folder = stored
    before = (folder / "stark.db").read_bytes()
    shown = CliRunner().invoke(load_app(), ["show", str(folder)])
    assert shown.exit_code == 0
    for number, _, runtime_ms in EXPECTED[version][:4]:
        assert f"#{number}" in shown.output or number == 0
        assert runtime_ms is None or f"{runtime_ms:.3f} ms" in shown.output
    assert [file.name for file in folder.iterdir()] == ["stark.db"]
    assert (folder / "stark.db").read_bytes() == before
