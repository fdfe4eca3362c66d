"""The documents of runs: of every schema version, in parts, with a name for each gap; and the page as one file."""

from __future__ import annotations

import hashlib
import json
import lzma
import random
from contextlib import closing

import pytest

from page_store import make_node, write_run
from paths import ROOT
from stark.page.assets import SCRIPTS, STATIC, standalone_page
from stark.page.collection import collect
from stark.page.node_document import node_document
from stark.page.run_document import RunDocument, run_document
from stark.page.summary import summarise_run
from stark.store.open import open_store

STORES = ROOT / "tests" / "data" / "stores"


@pytest.mark.parametrize("version", range(1, 6))
def test_a_store_of_any_version_opens_and_names_what_is_missing(version, tmp_path):
    (tmp_path / "stark.db").write_bytes(lzma.decompress((STORES / f"v{version}.db.xz").read_bytes()))
    with closing(open_store(tmp_path, write=False)) as store:
        (record,) = records = store.runs()
        document, summary = run_document(store, record), summarise_run(store, record)
        nodes = [node_document(store, records, record, row["id"]) for row in document["nodes"]]
    assert [row["id"] for row in document["nodes"]] == [node["id"] for node in nodes]
    assert "The final check is not stored: the best time comes from the search alone." in document["missing"]
    assert "No speed of light is stored, so there is no share of the bound." in document["missing"]
    assert summary["speedup"] == document["nodes"][0]["ms"] / min(row["ms"] or 99 for row in document["nodes"][1:])
    json.dumps([document, summary, nodes], allow_nan=False)


def test_only_new_nodes_are_read(tmp_path):
    write_run(tmp_path, attempts=4)
    with closing(open_store(tmp_path, write=True)) as store:
        records = store.runs()
        document = RunDocument(records[0])
        document.update(store, records)
        store.finish("run", make_node(5, 0, random.Random(1)))
        document.update(store, records)
        assert [row["id"] for row in document.after(4)["nodes"]] == [4, 5]
        assert document.after()["nodes"] == run_document(store, records[0])["nodes"]
        assert document.head["spent"] == {"tokens": 20_000, "usd": pytest.approx(0.08)}


def test_the_page_in_one_file_cannot_be_left_by_its_data(tmp_path):
    write_run(tmp_path, attempts=3, text=lambda text: f"</script><script>alert(1)</script><!--{text}")
    with closing(open_store(tmp_path, write=False)) as store:
        page = standalone_page("a <title>", collect(store, "runs"))
    assert page.count("<script") == page.count("</script>") == len(SCRIPTS) + 1
    assert "alert(1)</script>" not in page
    assert "<title>a &lt;title&gt;</title>" in page
    assert "default-src 'none'" in page


def test_the_libraries_are_those_of_the_manifest():
    for package in json.loads((STATIC / "vendor" / "vendor.json").read_text()):
        for file in package["files"]:
            assert hashlib.sha256((STATIC / "vendor" / file["as"]).read_bytes()).hexdigest() == file["sha256"]
