"""Reads one run of a store, for the commands that show or export it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stark.core.records import Call, Final, RoleUsage, RunRecord
from stark.core.tree import Node, Role

if TYPE_CHECKING:
    from stark.core.interfaces import StoreReader


def read_run(folder: Path, run: str | None = None) -> tuple[RunRecord, list[Node]]:
    """Return a run and its nodes. Calls hold every prompt, so ``read_calls`` reads them apart."""
    with _open_run(folder, run) as (store, record):
        return record, store.nodes(record.id)


def read_final(folder: Path, run: str | None = None) -> Final | None:
    """Return the result of the final check."""
    with _open_run(folder, run) as (store, record):
        return store.final(record.id)


def read_models(folder: Path, run: str | None = None) -> list[str]:
    """Return the names of the models that answered."""
    with _open_run(folder, run) as (store, record):
        return store.models(record.id)


def read_usage(folder: Path, run: str | None = None) -> dict[Role, RoleUsage]:
    """Return calls, tokens and money by role."""
    with _open_run(folder, run) as (store, record):
        return store.usage(record.id)


def read_calls(folder: Path, run: str | None, number: int | None = None) -> list[Call]:
    """Return the calls of one attempt, or of all."""
    with _open_run(folder, run) as (store, record):
        return store.calls(record.id, number)


@contextmanager
def _open_run(folder: Path, run: str | None) -> Iterator[tuple[StoreReader, RunRecord]]:
    from stark.store.lookup import pick_run
    from stark.store.open import open_store

    with closing(open_store(folder, write=False)) as store:
        yield store, pick_run(store, folder, run)
