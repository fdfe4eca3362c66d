"""The tables, and the migrations of older files.

The version of a file is the number of its migrations. Never change a released migration; add one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress

from stark.store import rows
from stark.store.connection import to_sql_value, transaction

APPLICATION_ID = 0x5354524B  # "STRK": marks the SQLite file as a store

# ``nodes`` refers to itself only backwards, because a parent lands before its children. Money is stored in
# ``reservations`` only (the worst case, then the actual cost), so that adding it up never reads prompts. ``clocks`` is
# separate from ``runs`` because it changes often and the row of a run is long.
_VERSION_1 = (
    """CREATE TABLE runs (
        key INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        created_at TEXT NOT NULL,
        task TEXT NOT NULL,
        given TEXT,
        settings TEXT NOT NULL,
        templates TEXT NOT NULL,
        versions TEXT NOT NULL,
        device TEXT NOT NULL
    )""",
    """CREATE TABLE clocks (
        run INTEGER PRIMARY KEY REFERENCES runs (key),
        seconds REAL NOT NULL
    )""",
    """CREATE TABLE amendments (
        run INTEGER NOT NULL REFERENCES runs (key),
        replaced_at TEXT NOT NULL,
        settings TEXT NOT NULL
    )""",
    """CREATE TABLE nodes (
        run INTEGER NOT NULL REFERENCES runs (key),
        id INTEGER NOT NULL,
        position INTEGER NOT NULL,
        parent_id INTEGER,
        role TEXT NOT NULL,
        source TEXT,
        "plan" TEXT,
        report TEXT NOT NULL,
        explanation TEXT NOT NULL,
        outside_share REAL,
        same_as INTEGER,
        notes TEXT NOT NULL,
        PRIMARY KEY (run, id),
        UNIQUE (run, position),
        FOREIGN KEY (run, parent_id) REFERENCES nodes (run, id),
        FOREIGN KEY (run, same_as) REFERENCES nodes (run, id)
    )""",
    """CREATE TABLE tickets (
        run INTEGER NOT NULL,
        number INTEGER NOT NULL,
        parent_id INTEGER NOT NULL,
        visible INTEGER NOT NULL,
        PRIMARY KEY (run, number),
        FOREIGN KEY (run, parent_id) REFERENCES nodes (run, id)
    )""",
    """CREATE TABLE reservations (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL REFERENCES runs (key),
        number INTEGER NOT NULL,
        "index" INTEGER NOT NULL,
        worst_tokens INTEGER NOT NULL,
        worst_usd REAL NOT NULL,
        tokens INTEGER,
        usd REAL
    )""",
    "CREATE INDEX reservations_of_run ON reservations (run)",
    """CREATE TABLE calls (
        run INTEGER NOT NULL REFERENCES runs (key),
        number INTEGER NOT NULL,
        "index" INTEGER NOT NULL,
        reservation INTEGER NOT NULL UNIQUE REFERENCES reservations (id),
        role TEXT NOT NULL,
        model TEXT NOT NULL,
        form TEXT NOT NULL,
        window TEXT NOT NULL,
        started_at TEXT NOT NULL,
        duration_s REAL NOT NULL,
        reply_model TEXT NOT NULL,
        finish TEXT NOT NULL,
        input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        cached_input_tokens INTEGER NOT NULL,
        cost_usd REAL,
        notes TEXT NOT NULL,
        arguments TEXT,
        text TEXT NOT NULL,
        messages TEXT NOT NULL,
        PRIMARY KEY (run, number, "index")
    )""",
)


def _create_tables(db: sqlite3.Connection) -> None:
    for statement in _VERSION_1:
        db.execute(statement)


def _add_benchmarks(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE runs ADD COLUMN labels TEXT NOT NULL DEFAULT '{}'")
    db.execute(
        """CREATE TABLE endings (
            run INTEGER NOT NULL REFERENCES runs (key),
            ended_at TEXT NOT NULL,
            reason TEXT NOT NULL,
            message TEXT NOT NULL
        )"""
    )
    db.execute("CREATE INDEX endings_of_run ON endings (run)")


def _add_finals(db: sqlite3.Connection) -> None:
    db.execute(
        """CREATE TABLE finals (
            run INTEGER NOT NULL REFERENCES runs (key),
            node_id INTEGER NOT NULL,
            score TEXT NOT NULL,
            verified TEXT NOT NULL,
            kernelbench TEXT NOT NULL
        )"""
    )
    db.execute("CREATE INDEX finals_of_run ON finals (run)")


def _add_judgements(db: sqlite3.Connection) -> None:
    """Add indices with all that a report reads of nodes and calls: the rows themselves hold long texts."""
    db.execute("ALTER TABLE nodes ADD COLUMN judgement TEXT NOT NULL DEFAULT ''")
    for (place,) in db.execute("SELECT rowid FROM nodes").fetchall():
        row = db.execute(
            "SELECT id, parent_id, role, report, notes, same_as FROM nodes WHERE rowid = ?", (place,)
        ).fetchone()
        with suppress(ValueError, TypeError):  # reading such a row raises StoreDamaged
            text = to_sql_value(rows.judgement_text(rows.compute_judgement(row)))
            db.execute("UPDATE nodes SET judgement = CAST(? AS TEXT) WHERE rowid = ?", (text, place))
    db.execute("CREATE INDEX judgements_of_run ON nodes (run, position, judgement)")
    db.execute(
        """CREATE INDEX usage_of_run ON calls
        (run, role, cost_usd, input_tokens, output_tokens, cached_input_tokens, duration_s)"""
    )


def _add_opponents(db: sqlite3.Connection) -> None:
    """Let judgements hold the opponent's time, which earlier versions cannot read; add an index of models."""
    db.execute("CREATE INDEX models_of_run ON calls (run, model)")


def _rename_facts(db: sqlite3.Connection) -> None:
    """Mark files whose reports and settings have names that earlier versions of STARK cannot read."""


def _add_drop_ins(db: sqlite3.Connection) -> None:
    for column in ("drop_in_source", "drop_in_report"):
        db.execute(f"ALTER TABLE finals ADD COLUMN {column} TEXT")


def _add_phases(db: sqlite3.Connection) -> None:
    """Mark files whose reports and judgements hold phases, which earlier versions cannot read."""


def _add_in_flight(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE tickets ADD COLUMN in_flight TEXT NOT NULL DEFAULT '[]'")


Migration = Callable[[sqlite3.Connection], None]
MIGRATIONS: list[Migration] = [
    _create_tables,
    _add_benchmarks,
    _add_finals,
    _add_judgements,
    _add_opponents,
    _rename_facts,
    _add_drop_ins,
    _add_phases,
    _add_in_flight,
]


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Migrate a file from ``version`` to this version, each step in its own transaction.

    The version is always written, so that a full or read-only disk fails here, before a model is paid.
    """
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        with transaction(db):
            step(db)
            db.execute(f"PRAGMA user_version = {number}")
    with transaction(db):
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
