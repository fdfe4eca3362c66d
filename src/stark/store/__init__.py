"""What happened, kept in one SQLite file per run folder: the only home of sqlite3.

``open_store(folder, write)`` gives a ``SqliteStore``; ``salvage(folder, into)`` rescues what a damaged one
still holds.
"""

from __future__ import annotations

from stark.store.opening import open_store
from stark.store.salvage import salvage
from stark.store.sqlite import SqliteStore

__all__ = ["SqliteStore", "open_store", "salvage"]
