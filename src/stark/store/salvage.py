"""Rescues the readable rows of a damaged store."""

from __future__ import annotations

import shutil
import sqlite3
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stark.core.errors import StoreDamaged, StoreError
from stark.store import rows
from stark.store.connection import FILE_NAME, as_store_errors, connect, insert, transaction
from stark.store.lock import refuse_if_held
from stark.store.open import check_identity, check_presence, open_store

MAX_UNREADABLE_ROWIDS = 20_000  # in a row; then the rest of a table is given up

_UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)
_KINDS = {"INTEGER": int, "REAL": float, "TEXT": str}
_RECORDS: dict[str, Callable[[sqlite3.Row], Any]] = {
    "runs": rows.run_of,
    "nodes": rows.node_of,
    "calls": rows.call_of,
    "finals": rows.final_of,
}

Row = dict[str, Any]


def salvage(folder: Path, into: Path) -> dict[str, int]:
    """Copy the readable rows of ``folder`` to a new store in ``into``; return the number of rows by table.

    The original is never modified: a copy is read.
    """
    with as_store_errors(folder):
        check_presence(folder)
        refuse_if_held(folder)
    with as_store_errors(into):
        if into.exists() and any(into.iterdir()):
            raise StoreError(f"{into} is not empty.", "Choose a new folder.")
        into.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=into.parent, prefix="salvage-") as scratch:
            kept = _rescue(folder, Path(scratch))
            Path(scratch, "new").rename(into)
    return kept


def _rescue(folder: Path, scratch: Path) -> dict[str, int]:
    """Fill a store in ``scratch/new`` from a copy of the damaged one."""
    for file in folder.glob(f"{FILE_NAME}*"):
        if not file.name.endswith("-shm"):  # an index of the -wal, which SQLite makes again
            shutil.copyfile(file, scratch / file.name)
    with (
        closing(connect(scratch / FILE_NAME, "rw")) as damaged,
        closing(open_store(scratch / "new", write=True)) as store,
    ):
        try:
            damaged.execute("PRAGMA writable_schema = ON")  # read on in a file that is too short
            check_identity(folder, damaged)
        except _UNREADABLE as error:
            raise StoreDamaged(f"Nothing can be rescued from {folder / FILE_NAME}: {error}.") from error
        with transaction(store.db):
            kept = _Rescue(damaged, store.db).copy()
    if not kept["runs"]:
        raise StoreDamaged(f"Nothing can be rescued from {folder / FILE_NAME}: it holds no readable run.")
    return kept


class _Rescue:
    """Copies rows table by table. The new file's constraints refuse a row whose parent or run was lost."""

    def __init__(self, damaged: sqlite3.Connection, new: sqlite3.Connection) -> None:
        self.damaged = damaged
        self.new = new
        self.positions: dict[int, list[int]] = defaultdict(list)  # run -> the old positions of the nodes kept
        self.nodes: set[tuple[int, int]] = set()
        self.tickets: set[tuple[int, int]] = set()
        self.reservations: set[int] = set()
        self.next_index: dict[tuple[int, int], int] = defaultdict(int)

    def copy(self) -> dict[str, int]:
        kept = {
            "runs": self._carry("runs", lambda row: row),
            "clocks": self._carry("clocks", lambda row: row),
            "amendments": self._carry("amendments", lambda row: row),
            "endings": self._carry("endings", lambda row: row),
            "nodes": self._carry("nodes", self._node, self._node_kept),
            "finals": self._carry("finals", self._final),
            "tickets": self._carry("tickets", self._ticket, self._ticket_kept),
            "reservations": self._carry("reservations", lambda row: row, self._reservation_kept),
            "calls": self._carry("calls", self._call, self._call_kept),
        }
        self.new.execute("INSERT OR IGNORE INTO clocks (run, seconds) SELECT key, 0.0 FROM runs")
        return kept

    def _carry(
        self, table: str, adapt: Callable[[Row], Row | None], kept: Callable[[Row, Row], None] = lambda old, new: None
    ) -> int:
        kinds = {info["name"]: _KINDS[info["type"]] for info in self.new.execute(f"PRAGMA table_info({table})")}
        count = 0
        for found in _rows(self.damaged, table):
            there = {name: kind for name, kind in kinds.items() if name in found.keys()}  # noqa: SIM118  an older file has fewer
            old = {name: found[name] for name in there}
            new = adapt(old) if _is_sound(table, found, there) else None
            if new is not None and self._inserted(table, new):
                kept(old, new)
                count += 1
        return count

    def _inserted(self, table: str, row: Row) -> bool:
        try:
            insert(self.new, table, row)
        except sqlite3.IntegrityError:
            return False
        return True

    def _node(self, row: Row) -> Row:
        same_as = row["same_as"] if (row["run"], row["same_as"]) in self.nodes else None
        judgement = rows.judgement_text(rows.compute_judgement(row))  # an older file has none
        return row | {"position": len(self.positions[row["run"]]), "same_as": same_as, "judgement": judgement}

    def _node_kept(self, old: Row, new: Row) -> None:
        self.positions[old["run"]].append(old["position"])
        self.nodes.add((old["run"], old["id"]))

    def _final(self, row: Row) -> Row | None:
        """Drop a final without its node: it would count for the next node of that number."""
        return row if (row["run"], row["node_id"]) in self.nodes else None

    def _ticket(self, row: Row) -> Row:
        """Recount the landed nodes that the attempt saw: some may be lost."""
        return row | {"visible": bisect_left(self.positions[row["run"]], row["visible"])}

    def _ticket_kept(self, old: Row, new: Row) -> None:
        self.tickets.add((old["run"], old["number"]))

    def _reservation_kept(self, old: Row, new: Row) -> None:
        self.reservations.add(old["id"])

    def _call(self, row: Row) -> Row | None:
        """Keep the calls of kept attempts; of an unfinished attempt only those before the first lost call."""
        attempt = (row["run"], row["number"])
        if attempt not in self.nodes and (attempt not in self.tickets or row["index"] != self.next_index[attempt]):
            return None
        if row["reservation"] not in self.reservations:  # lost; the call itself states its cost
            self._inserted("reservations", _settled_reservation(row))
        return row

    def _call_kept(self, old: Row, new: Row) -> None:
        self.next_index[old["run"], old["number"]] = old["index"] + 1


def _settled_reservation(call: Row) -> Row:
    tokens, usd = call["input_tokens"] + call["output_tokens"], call["cost_usd"] or 0.0
    spend = {"worst_tokens": tokens, "worst_usd": usd, "tokens": tokens, "usd": usd}
    return {"id": call["reservation"], "run": call["run"], "number": call["number"], "index": call["index"], **spend}


def _is_sound(table: str, row: sqlite3.Row, kinds: dict[str, type]) -> bool:
    """True if the store could have written this row."""
    if not all(row[name] is None or isinstance(row[name], kind) for name, kind in kinds.items()):
        return False
    try:
        _RECORDS.get(table, dict)(row)
    except (ValueError, TypeError):
        return False
    return True


def _rows(db: sqlite3.Connection, table: str) -> Iterator[sqlite3.Row]:
    """Yield all readable rows in the order of writing: in one sweep, and one by one after the first fault."""
    last = 0
    try:
        for row in db.execute(f"SELECT rowid AS place, * FROM {table} NOT INDEXED ORDER BY rowid"):
            if not last < row["place"] <= last + MAX_UNREADABLE_ROWIDS:
                break
            last = row["place"]
            yield row
        else:
            return
    except _UNREADABLE:
        pass
    yield from _probe(db, table, last + 1)


def _probe(db: sqlite3.Connection, table: str, place: int) -> Iterator[sqlite3.Row]:
    end = place + MAX_UNREADABLE_ROWIDS
    while place < end:
        try:
            row = db.execute(f"SELECT rowid AS place, * FROM {table} NOT INDEXED WHERE rowid = ?", (place,)).fetchone()
        except _UNREADABLE:
            row = None
        place += 1
        if row is not None:
            end = place + MAX_UNREADABLE_ROWIDS
            yield row
