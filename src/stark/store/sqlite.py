"""The store: ``stark.db`` in a run folder, one writer, any number of readers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from stark.core.errors import StoreError
from stark.core.records import Call, Ending, Final, RoleUsage, RunRecord, Spend, TicketRecord
from stark.core.tree import Judgement, Node, Role
from stark.store import rows
from stark.store.connection import bound, damaged, insert, plainly, transaction
from stark.store.lock import WriterLock

Record = TypeVar("Record")


@dataclass
class _Account:
    """What a run has spent: a running total, because 20,000 rows are too many to add up before every call."""

    settled: Spend = field(default_factory=Spend)
    open: dict[int, Spend] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[sqlite3.Row]) -> _Account:
        account = cls()
        for row in found:
            if row["tokens"] is None:
                account.open[row["id"]] = Spend(row["worst_tokens"], row["worst_usd"])
            else:
                account.settled += Spend(row["tokens"], row["usd"])
        return account

    @property
    def spent(self) -> Spend:
        return sum(self.open.values(), self.settled)


class SqliteStore:
    """A ``Store`` (see ``stark.core.interfaces``). Made by ``open_store``.

    Everything is stored under the small integer ``key`` of its run. Only a store that holds the writer's lock keeps
    accounts in memory: what a reader remembered would be out of date.
    """

    def __init__(self, folder: Path, db: sqlite3.Connection, lock: WriterLock | None) -> None:
        self.folder = folder
        self.db = db
        self._lock = lock
        self._keys: dict[str, int] = {}
        self._accounts: dict[int, _Account] = {}

    # -- writing ------------------------------------------------------------------------------------------------

    def create(self, run: RunRecord) -> None:
        row = rows.run_row(run)
        with self._transaction():
            key = insert(self.db, "runs", row)
            insert(self.db, "clocks", {"run": key, "seconds": 0.0})

    def amend(self, run_id: str, settings: dict[str, Any]) -> None:
        key = self._key(run_id)
        text = bound(rows.plain_text(settings))
        with self._transaction():
            self.db.execute(
                "INSERT INTO amendments (run, replaced_at, settings) SELECT key, ?, settings FROM runs WHERE key = ?",
                (datetime.now(UTC).isoformat(timespec="seconds"), key),
            )
            self.db.execute("UPDATE runs SET settings = CAST(? AS TEXT) WHERE key = ?", (text, key))

    def begin(self, run_id: str, ticket: TicketRecord) -> None:
        row = rows.ticket_row(self._key(run_id), ticket)
        with self._transaction():
            insert(self.db, "tickets", row)

    def reserve(self, run_id: str, number: int, index: int, worst: Spend) -> int:
        key = self._key(run_id)
        account = self._account(key)
        row = {"run": key, "number": number, "index": index, "worst_tokens": worst.tokens, "worst_usd": worst.usd}
        with self._transaction():
            reservation = insert(self.db, "reservations", row)
        account.open[reservation] = worst
        return reservation

    def journal(self, run_id: str, reservation: int, call: Call) -> None:
        key = self._key(run_id)
        account = self._account(key)
        row = rows.call_row(key, reservation, call)
        actual = Spend(call.reply.usage.total, call.reply.cost_usd or 0.0)
        with self._transaction():
            self._settle(reservation, actual, run=key, number=call.number, index=call.index)
            insert(self.db, "calls", row)
        del account.open[reservation]
        account.settled += actual

    def release(self, reservation: int) -> None:
        with self._transaction():
            self._settle(reservation, Spend())
        for account in self._accounts.values():
            account.open.pop(reservation, None)

    def _settle(self, reservation: int, actual: Spend, **of_call: int) -> None:
        condition = "".join(f' AND "{name}" = ?' for name in of_call)
        settled = self.db.execute(
            f"UPDATE reservations SET tokens = ?, usd = ? WHERE id = ? AND tokens IS NULL{condition}",
            (bound(actual.tokens), bound(actual.usd), reservation, *of_call.values()),
        )
        if settled.rowcount != 1:
            raise StoreError(f"There is no open reservation {reservation} for this call in {self.folder}.")

    def finish(self, run_id: str, node: Node) -> None:
        key = self._key(run_id)
        stored = self._load(rows.node_of, "SELECT * FROM nodes WHERE run = ? AND id = ?", key, node.id)
        if stored == [node]:
            return
        if stored:
            raise StoreError(f"Node {node.id} has already landed in {self.folder}, and it was a different one.")
        row = rows.node_row(key, self._landed(key), node)
        with self._transaction():
            insert(self.db, "nodes", row)

    def clock(self, run_id: str, seconds: float) -> None:
        key = self._key(run_id)
        with self._transaction():
            self.db.execute("UPDATE clocks SET seconds = seconds + ? WHERE run = ?", (bound(seconds), key))

    def end(self, run_id: str, ending: Ending) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        row = {"run": self._key(run_id), "ended_at": now, "reason": ending.reason, "message": ending.message}
        with self._transaction():
            insert(self.db, "endings", row)

    def confirm(self, run_id: str, final: Final) -> None:
        row = rows.final_row(self._key(run_id), final)
        with self._transaction():
            insert(self.db, "finals", row)

    # -- reading ------------------------------------------------------------------------------------------------

    def runs(self) -> list[RunRecord]:
        return self._load(rows.run_of, "SELECT * FROM runs ORDER BY key")

    def nodes(self, run_id: str) -> list[Node]:
        return self._load(rows.node_of, "SELECT * FROM nodes WHERE run = ? ORDER BY position", self._key(run_id))

    def judgements(self, run_id: str) -> list[Judgement]:
        query = "SELECT judgement FROM nodes WHERE run = ? ORDER BY position"
        return self._load(rows.judgement_of, query, self._key(run_id))

    def unfinished(self, run_id: str) -> list[TicketRecord]:
        return self._load(
            rows.ticket_of,
            "SELECT tickets.* FROM tickets LEFT JOIN nodes ON nodes.run = tickets.run AND nodes.id = tickets.number "
            "WHERE tickets.run = ? AND nodes.id IS NULL ORDER BY number",
            self._key(run_id),
        )

    def given_back(self, run_id: str) -> set[int]:
        key = self._key(run_id)
        query = (
            "SELECT DISTINCT number FROM reservations "
            "WHERE run = ? AND tokens = 0 AND id NOT IN (SELECT reservation FROM calls WHERE run = ?)"
        )
        return set(self._load(lambda row: int(row["number"]), query, key, key))

    def calls(self, run_id: str, number: int | None = None) -> list[Call]:
        key = self._key(run_id)
        if number is None:
            return self._load(rows.call_of, 'SELECT * FROM calls WHERE run = ? ORDER BY number, "index"', key)
        return self._load(
            rows.call_of, 'SELECT * FROM calls WHERE run = ? AND number = ? ORDER BY "index"', key, number
        )

    def spent(self, run_id: str) -> Spend:
        return self._account(self._key(run_id)).spent

    def seconds(self, run_id: str) -> float:
        key = self._key(run_id)
        return sum(self._load(lambda row: float(row["seconds"]), "SELECT seconds FROM clocks WHERE run = ?", key))

    def ending(self, run_id: str) -> Ending | None:
        query = "SELECT reason, message FROM endings WHERE run = ? ORDER BY rowid DESC LIMIT 1"
        found = self._load(lambda row: Ending(row["reason"], row["message"]), query, self._key(run_id))
        return found[0] if found else None

    def finals(self, run_id: str) -> list[Final]:
        return self._load(rows.final_of, "SELECT * FROM finals WHERE run = ? ORDER BY rowid", self._key(run_id))

    def final(self, run_id: str) -> Final | None:
        query = "SELECT * FROM finals WHERE run = ? ORDER BY rowid DESC LIMIT 1"
        found = self._load(rows.final_of, query, self._key(run_id))
        return found[0] if found else None

    def usage(self, run_id: str) -> dict[Role, RoleUsage]:
        columns = ("input_tokens", "output_tokens", "cached_input_tokens", "duration_s")
        sums = ", ".join(f"SUM({name}) AS {name}" for name in columns)
        money = (
            "CASE WHEN COUNT(cost_usd) = COUNT(*) THEN SUM(cost_usd) END AS usd"  # one unknown makes the sum unknown
        )
        query = f"SELECT role, COUNT(*) AS calls, {money}, {sums} FROM calls WHERE run = ? GROUP BY role"
        return dict(self._load(rows.usage_of, query, self._key(run_id)))

    def models(self, run_id: str) -> list[str]:
        query = "SELECT DISTINCT model FROM calls WHERE run = ? ORDER BY model"
        return self._load(lambda row: str(row["model"]), query, self._key(run_id))

    def close(self) -> None:
        try:
            if self._lock:
                # A store at rest is one plain file, which can be copied and read from a read-only folder. Refused
                # while a reader is connected; then the side files stay.
                with suppress(sqlite3.Error):
                    self.db.execute("PRAGMA busy_timeout = 0")
                    self.db.execute("PRAGMA journal_mode = DELETE").fetchall()
            self.db.close()
        finally:
            if self._lock:
                self._lock.release()

    # -- the two ways to the file -------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with plainly(self.folder), transaction(self.db):
            yield

    def _load(self, record_of: Callable[[sqlite3.Row], Record], query: str, *values: Any) -> list[Record]:
        with plainly(self.folder):
            try:
                return [record_of(row) for row in self.db.execute(query, values)]
            except (ValueError, TypeError, IndexError) as error:  # a row that is not what was written
                raise damaged(self.folder, str(error)) from error

    def _key(self, run_id: str) -> int:
        if run_id not in self._keys:
            query = "SELECT key FROM runs WHERE id = CAST(? AS TEXT)"
            found = self._load(lambda row: int(row["key"]), query, bound(run_id))
            if not found:
                raise StoreError(f"There is no run {run_id!r} in {self.folder}.")
            self._keys[run_id] = found[0]
        return self._keys[run_id]

    def _landed(self, key: int) -> int:
        query = "SELECT COALESCE(MAX(position) + 1, 0) AS landed FROM nodes WHERE run = ?"
        return self._load(lambda row: int(row["landed"]), query, key)[0]

    def _account(self, key: int) -> _Account:
        if key in self._accounts:
            return self._accounts[key]
        with plainly(self.folder):
            account = _Account.of(self.db.execute("SELECT * FROM reservations WHERE run = ? ORDER BY id", (key,)))
        if self._lock:
            self._accounts[key] = account
        return account
