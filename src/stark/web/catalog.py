"""The stores below a folder: a run, a benchmark, or a folder of many."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from stark.core.errors import StarkError, StoreError
from stark.page.run_document import Json
from stark.store.connection import FILE_NAME
from stark.web.shelf import Shelf, Signature, read_signature

MAX_DEPTH = 4
MAX_STORES = 5_000


class Catalog:
    """Finds stores and hands out their shelves. A client can only name a store that was found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._shelves: dict[str, Shelf] = {}
        self.find()

    def find(self) -> dict[str, Shelf]:
        """Look for stores again; return them by name."""
        with self._lock:
            found = dict(list(find_stores(self.folder)))
            self._shelves = {name: self._shelves.get(name) or Shelf(path) for name, path in found.items()}
            return self._shelves

    def shelf(self, name: str) -> Shelf:
        """Return the store of this name."""
        shelf = self._shelves.get(name) or self.find().get(name)
        if shelf is None:
            raise StoreError(f"There is no store {name!r} in {self.folder}.", "Choose one of the list.")
        return shelf

    def index(self) -> Json:
        """Return every store with its runs in a few figures; a store that cannot be read says why."""
        return {
            "title": self.folder.resolve().name,
            "stores": [_describe_store(name, shelf) for name, shelf in self.find().items()],
        }

    def signature(self, name: str | None) -> tuple[Signature, ...]:
        """Return what changes with a store, or with any store."""
        if name is not None:
            return (read_signature(self.shelf(name).folder),)
        return tuple(read_signature(shelf.folder) for shelf in self.find().values())


def find_stores(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and folder of each store in a folder, sorted; the folder's own store hides those below it."""
    if (folder / FILE_NAME).exists():
        yield folder.resolve().name, folder
        return
    count = 0
    for place, names, files in os.walk(folder):
        path = Path(place)
        if FILE_NAME in files:
            yield str(path.relative_to(folder)), path
            count += 1
        is_deep = len(path.relative_to(folder).parts) >= MAX_DEPTH or FILE_NAME in files or count >= MAX_STORES
        names[:] = [] if is_deep else sorted(name for name in names if not name.startswith("."))


def _describe_store(name: str, shelf: Shelf) -> Json:
    try:
        return {"store": name, "runs": shelf.summaries()}
    except StarkError as error:
        return {"store": name, "runs": [], "error": error.message, "hint": error.next_step}
