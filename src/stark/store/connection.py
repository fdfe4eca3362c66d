"""How the store speaks to SQLite: connections, transactions, values, and every failure in words a user can act on."""

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

_LIMIT = 2**53  # the largest number that neither JSON readers nor SQL sums get wrong

_SPACE = "Free some space, then resume the run."
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}  # ERROR: a table of ours is not there
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
    """A connection without implicit transactions. One that only reads may be used from any thread."""
    uri = f"{file.absolute().as_uri()}?mode={mode}{'&immutable=1' if immutable else ''}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_S, check_same_thread=mode != "ro")
    db.row_factory = sqlite3.Row
    db.text_factory = _text
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, and durable when it returns."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:  # something failed, the commit itself perhaps
            db.execute("ROLLBACK")


def insert(db: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> int:
    """Add a row and return its rowid."""
    columns = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join("CAST(? AS TEXT)" if isinstance(value, str) else "?" for value in row.values())
    cursor = db.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", [bound(value) for value in row.values()])
    return cursor.lastrowid or 0


def bound(value: Any) -> Any:
    """A value as it is handed to SQLite.

    Text goes as bytes (and is cast back to TEXT), because a model may write lone surrogates, which plain UTF-8
    refuses. SQLite would quietly turn NaN into NULL, and has integers of 64 bits.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, int | float) and not -_LIMIT < value < _LIMIT:  # true of NaN as well
        raise StoreError(f"The number {value} cannot be stored.", "The part that made it is faulty; please report it.")
    return value


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogatepass")


@contextmanager
def as_store_errors(folder: Path) -> Iterator[None]:
    """Turn what SQLite and the file system say into a StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translate(folder, error) from error
    except UnicodeDecodeError as error:  # the message of SQLite itself may quote damaged text
        raise damaged(folder, "its schema is unreadable") from error
    except OSError as error:
        next_step = _NEXT_STEPS_OF_FILES.get(error.errno or 0, _PERMISSIONS)
        raise StoreError(f"The run folder {folder} cannot be used: {error.strerror}.", next_step) from error


def _translate(folder: Path, error: sqlite3.Error) -> StoreError:
    """The StoreError that says what an error of SQLite means for the user."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF  # the rest are details of the same code
    if code in _DAMAGE:
        return damaged(folder, str(error))
    if code == sqlite3.SQLITE_CONSTRAINT:
        return StoreError(f"A record contradicts what {folder / FILE_NAME} holds: {error}.")
    return StoreError(f"{folder / FILE_NAME} cannot be used: {error}.", _NEXT_STEPS.get(code, ""))


def damaged(folder: Path, reason: str) -> StoreDamaged:
    """The error for a file that is there and cannot be trusted."""
    return StoreDamaged(
        f"{folder / FILE_NAME} is damaged: {reason}.",
        f"Rescue what can still be read with: stark salvage {folder} NEW_DIR",
    )


def missing(folder: Path) -> StoreError:
    """The error for a folder without a store."""
    return StoreError(f"There is no run in {folder}.", "Check the path of the run folder.")
