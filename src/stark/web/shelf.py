"""One store as the server reads it: opened, read and closed again, and only after its files have changed.

No connection stays open, so a writer can always tidy its file up. All clients share what was read.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from contextlib import closing
from pathlib import Path

from stark.core.errors import StoreError
from stark.core.interfaces import StoreReader
from stark.core.records import RunRecord
from stark.page.node_document import node_document
from stark.page.run_document import Json, RunDocument
from stark.page.summary import summarise_run
from stark.store.connection import FILE_NAME
from stark.store.lock import is_held
from stark.store.open import open_store

MAX_DOCUMENTS = 16  # of runs, kept in memory for each store
MAX_NODES = 32

Signature = tuple[int, ...]


def read_signature(folder: Path) -> Signature:
    """Return numbers that change whenever the store or its writer does. Opens no file of the store."""
    found: list[int] = [is_held(folder)]
    for name in (FILE_NAME, f"{FILE_NAME}-wal"):
        try:
            facts = (folder / name).stat()
        except OSError:
            continue
        found += [facts.st_ino, facts.st_mtime_ns, facts.st_size]
    return tuple(found)


class Shelf:
    """The runs of one store. Safe to use from many threads; one of them reads at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._signature: Signature = ()
        self._versions: dict[str, tuple[int, ...]] = {}
        self._records: dict[str, RunRecord] = {}
        self._summaries: dict[str, tuple[object, Json]] = {}
        self._documents: OrderedDict[str, tuple[Signature, RunDocument, bytes]] = OrderedDict()
        self._nodes: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    def summaries(self) -> list[Json]:
        """Return every run in a few figures; only changed runs are read."""
        with self._lock, closing(open_store(self.folder, write=False)) as store:
            signature = self._refresh(store)
            for run_id, record in self._records.items():
                version = (self._versions[run_id], signature[0])
                if self._summaries.get(run_id, ((), {}))[0] != version:
                    self._summaries[run_id] = version, summarise_run(store, record, bool(signature[0]))
            return [self._summaries[run_id][1] for run_id in self._records]

    def document(self, run_id: str, known: int = 0) -> bytes:
        """Return a run as JSON, without its first ``known`` nodes."""
        with self._lock:
            signature = read_signature(self.folder)
            if self._documents.get(run_id, ((),))[0] != signature:
                self._read_document(run_id)
            _, document, whole = self._documents[run_id]
            self._documents.move_to_end(run_id)
        return _to_bytes(document.after(known)) if known else whole

    def node(self, run_id: str, number: int) -> bytes:
        """Return everything on one node as JSON."""
        with self._lock:
            key = (read_signature(self.folder), run_id, number)
            if key not in self._nodes:
                with closing(open_store(self.folder, write=False)) as store:
                    self._refresh(store)
                    found = node_document(store, list(self._records.values()), self._record(run_id), number)
                if found is None:
                    raise StoreError(f"The run {run_id!r} has no node {number}.", "Choose a node of the tree.")
                self._nodes[key] = _to_bytes(found)
                while len(self._nodes) > MAX_NODES:
                    self._nodes.popitem(last=False)
            return self._nodes[key]

    def _read_document(self, run_id: str) -> None:
        with closing(open_store(self.folder, write=False)) as store:
            signature = self._refresh(store)
            record = self._record(run_id)
            document = self._documents[run_id][1] if run_id in self._documents else RunDocument(record)
            document.record = record
            document.update(store, list(self._records.values()), bool(signature[0]))
        self._documents[run_id] = signature, document, _to_bytes(document.after())
        while len(self._documents) > MAX_DOCUMENTS:
            self._documents.popitem(last=False)

    def _refresh(self, store: StoreReader) -> Signature:
        """Read the list of runs if it has changed. The signature is older than what is read after it."""
        signature = read_signature(self.folder)
        if signature[1:2] != self._signature[1:2]:  # another file: a run was deleted and begun again
            self._records, self._summaries = {}, {}
            self._documents.clear()
        versions = store.versions()
        amended = any(version[-1:] != self._versions.get(run_id, ())[-1:] for run_id, version in versions.items())
        if amended or not self._records:
            self._records = {record.id: record for record in store.runs()}
        self._versions = {run_id: versions.get(run_id, ()) for run_id in self._records}
        self._signature = signature
        return signature

    def _record(self, run_id: str) -> RunRecord:
        if run_id not in self._records:
            raise StoreError(f"There is no run {run_id!r} in {self.folder}.", "Choose a run of the list.")
        return self._records[run_id]


def _to_bytes(document: Json) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
