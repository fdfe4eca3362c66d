"""Opening the store of a run folder: create, check, migrate, or refuse."""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Literal, overload

from stark.core.errors import StoreError, StoreTooNew
from stark.store import schema
from stark.store.connection import FILE_NAME, as_store_errors, connect, copy_privately, damaged_error, missing_error
from stark.store.lock import WriterLock
from stark.store.reader import SqliteReader
from stark.store.sqlite import SqliteStore

DRAFT_NAME = "stark.new"
SMALLEST_PAGE = 512  # SQLite treats a shorter file as new and deletes its -wal


@overload
def open_store(folder: Path, write: Literal[True], create: bool = True) -> SqliteStore: ...


@overload
def open_store(folder: Path, write: Literal[False]) -> SqliteReader: ...


def open_store(folder: Path, write: bool, create: bool = True) -> SqliteReader:
    """Open the store of a run folder.

    Opening to write takes the lock, migrates an older file and creates a missing one, unless ``create`` is False.
    Opening to read changes nothing.
    """
    with as_store_errors(folder):
        if write and not create:
            check_presence(folder)
        return _open_to_write(folder) if write else _open_to_read(folder)


def check_presence(folder: Path) -> None:
    """Refuse a folder without a store, and a file that SQLite would treat as an empty database."""
    file = folder / FILE_NAME
    if file.exists():
        if file.stat().st_size < SMALLEST_PAGE:
            raise damaged_error(folder, "the file is empty or was cut off")
    elif _side_files(folder):
        raise damaged_error(folder, f"the file is missing, and only {_side_files(folder)[0].name} is left")
    else:
        raise missing_error(folder)


def check_identity(folder: Path, db: sqlite3.Connection) -> int:
    """Return the version of a store; refuse the file of another program and a newer version."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    known = len(schema.MIGRATIONS)
    if application != schema.APPLICATION_ID:
        raise StoreError(f"{folder / FILE_NAME} is the database of another program.", "Choose another folder.")
    if version > known:
        raise StoreTooNew(
            f"{folder / FILE_NAME} has version {version}; this STARK knows versions up to {known}.",
            "Use the version of STARK that wrote it, or a newer one.",
        )
    return version


def _open_to_read(folder: Path) -> SqliteReader:
    check_presence(folder)
    with ExitStack() as undo:
        db = undo.enter_context(closing(_connect_to_read(folder)))
        version = check_identity(folder, db)
        if version < len(schema.MIGRATIONS):  # the file stays as it is
            old, db = db, undo.enter_context(closing(copy_privately(db)))
            schema.migrate(db, version)
            old.close()
        undo.pop_all()
    return SqliteReader(folder, db)


def _open_to_write(folder: Path) -> SqliteStore:
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        lock = WriterLock(folder)
        undo.callback(lock.release)
        if not (folder / FILE_NAME).exists() and not _side_files(folder):
            _create(folder)
        check_presence(folder)
        version = _examine(folder)
        db = undo.enter_context(closing(connect(folder / FILE_NAME, "rw")))
        for pragma in ("foreign_keys = ON", "journal_mode = WAL", "synchronous = FULL"):
            db.execute(f"PRAGMA {pragma}").fetchall()
        schema.migrate(db, version)
        undo.pop_all()
    return SqliteStore(folder, db, lock)


def _create(folder: Path) -> None:
    """Make the file under another name first, so that a killed process never leaves half a ``stark.db``."""
    draft = folder / DRAFT_NAME
    draft.unlink(missing_ok=True)
    try:
        with closing(connect(draft, "rwc")) as db:
            db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            schema.migrate(db, version=0)
        draft.replace(folder / FILE_NAME)
    finally:
        draft.unlink(missing_ok=True)
    _flush(folder)


def _flush(folder: Path) -> None:
    """Make the file names of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _examine(folder: Path) -> int:
    """Check a file before it is opened to write and return its version. Only reads: a refused file stays unchanged."""
    with closing(_connect_to_read(folder)) as db:
        version = check_identity(folder, db)
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise damaged_error(folder, " ".join(verdict.split()))
    return version


def _connect_to_read(folder: Path) -> sqlite3.Connection:
    """Open a connection to read, and read the header.

    A killed writer leaves the file in WAL mode. SQLite reads that from a read-only folder only as immutable, which is
    true if there are no side files.
    """
    file = folder / FILE_NAME
    try:
        return _check_header(connect(file, "ro"))
    except sqlite3.OperationalError as error:
        read_only = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
        if not read_only or _side_files(folder):
            raise
    return _check_header(connect(file, "ro", immutable=True))


def _check_header(db: sqlite3.Connection) -> sqlite3.Connection:
    try:
        db.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error:
        db.close()
        raise
    return db


def _side_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{FILE_NAME}-*"))
