"""SQLite connections, transactions and values; SQLite errors become StoreErrors."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from stark.core.errors import StoreDamaged, StoreError

FILE_NAME = "stark.db"
BUSY_S = 10.0

_LIMIT = 2**53  # JSON readers and SQL sums are exact below it

_SPACE = "Free some space, then resume the run."
_DAMAGE = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,
}  # ERROR: one of the store's tables is missing
_PERMISSIONS = "Check the permissions of the folder."
_ELSEWHERE = "Choose another folder."
_NEXT_STEPS_OF_FILES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EEXIST: _ELSEWHERE,
    errno.ENOTDIR: _ELSEWHERE,
    errno.ENOENT: _ELSEWHERE,
}
_NEXT_STEPS = {
    sqlite3.SQLITE_FULL: _SPACE,
    sqlite3.SQLITE_IOERR: "Check the disk and the space left on it, then resume the run.",
    sqlite3.SQLITE_BUSY: "Another program holds the file; close it and try again.",
    sqlite3.SQLITE_READONLY: _PERMISSIONS,
    sqlite3.SQLITE_PERM: _PERMISSIONS,
    sqlite3.SQLITE_CANTOPEN: _PERMISSIONS,
}


def connect(file: Path, mode: Literal["ro", "rw", "rwc"], immutable: bool = False) -> sqlite3.Connection:
    """Open a connection without implicit transactions. A read-only one may be used from any thread."""
    uri = f"{file.absolute().as_uri()}?mode={mode}{'&immutable=1' if immutable else ''}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_S, check_same_thread=mode != "ro")
    return _with_records(db)


def copy_privately(db: sqlite3.Connection) -> sqlite3.Connection:
    """Return a copy of a database that nobody else sees. SQLite removes it when it is closed."""
    copy = _with_records(sqlite3.connect("", isolation_level=None, check_same_thread=False))
    db.backup(copy)
    return copy


def _with_records(db: sqlite3.Connection) -> sqlite3.Connection:
    db.row_factory = sqlite3.Row
    db.text_factory = _text
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit all or nothing; durable when it returns."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:  # a statement or the commit failed
            db.execute("ROLLBACK")


def insert(db: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> int:
    """Add a row and return its rowid."""
    columns = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join("CAST(? AS TEXT)" if isinstance(value, str) else "?" for value in row.values())
    cursor = db.execute(
        f"INSERT INTO {table} ({columns}) VALUES ({marks})", [to_sql_value(value) for value in row.values()]
    )
    return cursor.lastrowid or 0


def to_sql_value(value: Any) -> Any:
    """Return a value as SQLite takes it; refuse numbers it would change.

    Text goes as bytes and is cast back to TEXT, because models write lone surrogates, which UTF-8 refuses. SQLite
    would turn NaN into NULL, and its integers have 64 bits.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, int | float) and not -_LIMIT < value < _LIMIT:  # true of NaN as well
        raise StoreError(
            f"The number {value} cannot be stored.", "This is a fault of STARK or of a plugin; please report it."
        )
    return value


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogatepass")


@contextmanager
def as_store_errors(folder: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into a StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translate(folder, error) from error
    except UnicodeDecodeError as error:  # the message of SQLite itself may quote damaged text
        raise damaged_error(folder, "its schema is unreadable") from error
    except OSError as error:
        next_step = _NEXT_STEPS_OF_FILES.get(error.errno or 0, _PERMISSIONS)
        raise StoreError(f"The run folder {folder} cannot be used: {error.strerror}.", next_step) from error


def _translate(folder: Path, error: sqlite3.Error) -> StoreError:
    """Return the StoreError for an error of SQLite."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF  # the rest are details of the same code
    if code in _DAMAGE:
        return damaged_error(folder, str(error))
    if code == sqlite3.SQLITE_CONSTRAINT:
        return StoreError(f"A record contradicts the content of {folder / FILE_NAME}: {error}.")
    return StoreError(f"{folder / FILE_NAME} cannot be used: {error}.", _NEXT_STEPS.get(code, ""))


def damaged_error(folder: Path, reason: str) -> StoreDamaged:
    """Return the error for a file that exists and is not a sound store."""
    return StoreDamaged(
        f"{folder / FILE_NAME} is damaged: {reason}.",
        f"Rescue the readable part with: stark salvage {folder} NEW_DIR",
    )


def missing_error(folder: Path) -> StoreError:
    """Return the error for a folder without a store."""
    return StoreError(f"There is no run in {folder}.", "Check the path of the run folder.")
