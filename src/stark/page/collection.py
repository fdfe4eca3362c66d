"""The runs of a folder as one JSON document, for a page without a server."""

from __future__ import annotations

from stark.core.interfaces import StoreReader
from stark.core.records import RunRecord
from stark.core.tree import ROOT_ID
from stark.page.node_document import node_document
from stark.page.run_document import Json, run_document
from stark.page.summary import summarise_run


def collect(store: StoreReader, name: str, with_calls: bool = False) -> Json:
    """Return every run of a store, with the nodes from the root to the winner; their prompts only if asked."""
    records = store.runs()
    documents = {record.id: run_document(store, record) for record in records}
    return {
        "title": name,
        "stores": [{"store": name, "runs": [summarise_run(store, record) for record in records]}],
        "documents": documents,
        "nodes": {
            record.id: _collect_nodes(store, records, record, documents[record.id], with_calls) for record in records
        },
    }


def _collect_nodes(
    store: StoreReader, records: list[RunRecord], record: RunRecord, document: Json, with_calls: bool
) -> Json:
    found = {}
    for number in path_to(document, document["winner"]):
        node = node_document(store, records, record, number) or {}
        found[str(number)] = node if with_calls else {**node, "calls": []}
    return found


def path_to(document: Json, number: int | None) -> list[int]:
    """Return the nodes from one node up to the root."""
    parents = {row["id"]: row["parent"] for row in document["nodes"]}
    path = []
    while number is not None:
        path.append(number)
        number = parents.get(number)
    return path or [ROOT_ID] * (ROOT_ID in parents)
