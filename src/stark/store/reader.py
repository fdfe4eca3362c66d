"""Reading a store: for views, benchmarks and the run itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stark.core.errors import StoreError
from stark.core.records import AttemptAccount, Call, Ending, EndReason, Final, RoleUsage, RunRecord, Spend, TicketRecord
from stark.core.tree import Judgement, Node, Role
from stark.store import rows
from stark.store.connection import as_store_errors, damaged_error, to_sql_value

Record = TypeVar("Record")


@dataclass
class Account:
    """Spending of one run as a running total: adding up 20,000 rows before every call takes too long."""

    settled: Spend = field(default_factory=Spend)
    open: dict[int, Spend] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[sqlite3.Row]) -> Account:
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


class SqliteReader:
    """A ``StoreReader`` (see ``stark.core.interfaces``). ``open_store`` makes it.

    Everything is stored under the small integer ``key`` of its run.
    """

    def __init__(self, folder: Path, db: sqlite3.Connection) -> None:
        self.folder = folder
        self.db = db
        self._keys: dict[str, int] = {}

    def runs(self) -> list[RunRecord]:
        return self._load(rows.run_of, "SELECT * FROM runs ORDER BY key")

    def nodes(self, run_id: str, skip: int = 0) -> list[Node]:
        query = "SELECT * FROM nodes WHERE run = ? AND position >= ? ORDER BY position"
        return self._load(rows.node_of, query, self._key(run_id), skip)

    def node(self, run_id: str, number: int) -> Node | None:
        query = "SELECT * FROM nodes WHERE run = ? AND id = ?"
        found = self._load(rows.node_of, query, self._key(run_id), number)
        return found[0] if found else None

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

    def attempts_with_failed_calls(self, run_id: str) -> set[int]:
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

    def count_calls(self, run_id: str) -> dict[Role, int]:
        query = "SELECT role, COUNT(*) AS calls FROM calls WHERE run = ? GROUP BY role"
        return dict(self._load(lambda row: (Role(row["role"]), int(row["calls"])), query, self._key(run_id)))

    def spent(self, run_id: str) -> Spend:
        return self._account(self._key(run_id)).spent

    def accounts(self, run_id: str) -> list[AttemptAccount]:
        query = (
            "SELECT number, COUNT(tokens) AS settled, SUM(tokens) AS tokens, SUM(usd) AS usd, "
            "COUNT(*) > COUNT(tokens) AS is_waiting FROM reservations WHERE run = ? GROUP BY number ORDER BY number"
        )
        return self._load(rows.account_of, query, self._key(run_id))

    def versions(self) -> dict[str, tuple[int, ...]]:
        tables = ("nodes", "tickets", "reservations", "calls", "endings", "finals", "amendments")
        counts = ", ".join(f"(SELECT COUNT(*) FROM {table} WHERE run = runs.key)" for table in tables)
        query = f"SELECT id, {counts} FROM runs ORDER BY key"
        return dict(self._load(lambda row: (str(row["id"]), tuple(row)[1:]), query))

    def seconds(self, run_id: str) -> float:
        key = self._key(run_id)
        return sum(self._load(lambda row: float(row["seconds"]), "SELECT seconds FROM clocks WHERE run = ?", key))

    def ending(self, run_id: str) -> Ending | None:
        query = "SELECT reason, message FROM endings WHERE run = ? ORDER BY rowid DESC LIMIT 1"
        found = self._load(lambda row: Ending(EndReason(row["reason"]), row["message"]), query, self._key(run_id))
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
        self.db.close()

    def _load(self, record_of: Callable[[sqlite3.Row], Record], query: str, *values: Any) -> list[Record]:
        with as_store_errors(self.folder):
            try:
                return [record_of(row) for row in self.db.execute(query, values)]
            except (ValueError, TypeError, IndexError) as error:  # a row that is not what was written
                raise damaged_error(self.folder, str(error)) from error

    def _key(self, run_id: str) -> int:
        if run_id not in self._keys:
            query = "SELECT key FROM runs WHERE id = CAST(? AS TEXT)"
            found = self._load(lambda row: int(row["key"]), query, to_sql_value(run_id))
            if not found:
                raise StoreError(f"There is no run {run_id!r} in {self.folder}.")
            self._keys[run_id] = found[0]
        return self._keys[run_id]

    def _account(self, key: int) -> Account:
        with as_store_errors(self.folder):
            return Account.of(self.db.execute("SELECT * FROM reservations WHERE run = ? ORDER BY id", (key,)))
