"""Writing a store: ``stark.db`` in a run folder, one writer, any number of readers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stark.core.errors import StoreError
from stark.core.records import Call, Ending, Final, RunRecord, Spend, TicketRecord
from stark.core.tree import Node
from stark.store import rows
from stark.store.connection import as_store_errors, insert, to_sql_value, transaction
from stark.store.lock import WriterLock
from stark.store.reader import Account, SqliteReader


class SqliteStore(SqliteReader):
    """A ``Store`` (see ``stark.core.interfaces``), and a ``StoreReader`` too. ``open_store`` makes it.

    It keeps accounts in memory, because it holds the writer's lock: no other process changes them.
    """

    def __init__(self, folder: Path, db: sqlite3.Connection, lock: WriterLock) -> None:
        super().__init__(folder, db)
        self._lock = lock
        self._accounts: dict[int, Account] = {}

    def create(self, run: RunRecord) -> None:
        row = rows.run_row(run)
        with self._transaction():
            key = insert(self.db, "runs", row)
            insert(self.db, "clocks", {"run": key, "seconds": 0.0})

    def amend(self, run_id: str, settings: dict[str, Any]) -> None:
        key = self._key(run_id)
        text = to_sql_value(rows.plain_text(settings))
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
            (to_sql_value(actual.tokens), to_sql_value(actual.usd), reservation, *of_call.values()),
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
        row = rows.node_row(key, self._next_position(key), node)
        with self._transaction():
            insert(self.db, "nodes", row)

    def clock(self, run_id: str, seconds: float) -> None:
        key = self._key(run_id)
        with self._transaction():
            self.db.execute("UPDATE clocks SET seconds = seconds + ? WHERE run = ?", (to_sql_value(seconds), key))

    def end(self, run_id: str, ending: Ending) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        row = {"run": self._key(run_id), "ended_at": now, "reason": ending.reason, "message": ending.message}
        with self._transaction():
            insert(self.db, "endings", row)

    def confirm(self, run_id: str, final: Final) -> None:
        row = rows.final_row(self._key(run_id), final)
        with self._transaction():
            insert(self.db, "finals", row)

    def close(self) -> None:
        try:
            # A closed store is one plain file, which can be copied and read from a read-only folder. SQLite refuses
            # while a reader is connected; then the side files stay.
            with suppress(sqlite3.Error):
                self.db.execute("PRAGMA busy_timeout = 0")
                self.db.execute("PRAGMA journal_mode = DELETE").fetchall()
            super().close()
        finally:
            self._lock.release()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with as_store_errors(self.folder), transaction(self.db):
            yield

    def _next_position(self, key: int) -> int:
        query = "SELECT COALESCE(MAX(position) + 1, 0) AS position FROM nodes WHERE run = ?"
        return self._load(lambda row: int(row["position"]), query, key)[0]

    def _account(self, key: int) -> Account:
        if key not in self._accounts:
            self._accounts[key] = super()._account(key)
        return self._accounts[key]
