"""Runs that are stored: which one is meant, what it was made with, and a place for a new one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import ValidationError

from stark.core.chat import Reply
from stark.core.errors import StoreError, StoreTooNew, UsageError
from stark.core.interfaces import StoreReader
from stark.core.records import RunRecord
from stark.core.settings import Settings
from stark.core.tree import ROOT_ID, Role
from stark.store.open import open_store
from stark.store.sqlite import SqliteStore
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing
from stark_worker.protocol.request import Entry, Score

LISTED = 20  # runs that are named in an error


def only_run(store: StoreReader, folder: Path) -> RunRecord:
    """The run of a folder."""
    runs = store.runs()
    if not runs:
        raise StoreError(f"The store in {folder} holds no run.", "It was stopped before it began; start it anew.")
    if len(runs) > 1:
        raise UsageError(
            f"{folder} holds a benchmark of {len(runs)} runs.",
            "Read it with stark report; go on with it by the stark bench command that began it.",
        )
    return runs[0]


def settings_of(record: RunRecord) -> Settings:
    """The settings a run was stored with."""
    try:
        return Settings.model_validate(record.settings)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise StoreTooNew(
            f"The run {record.id} has a setting this version does not know: {key}, {first['msg'].lower()}.",
            "Go on with it in the version that began it, which the store names.",
        ) from error


def pick_run(store: StoreReader, folder: Path, name: str | None) -> RunRecord:
    """The run of a folder, or the one of a benchmark that a name fits: the whole of its own, or a part of it."""
    runs = store.runs()
    if not runs or (name is None and len(runs) == 1):
        return only_run(store, folder)
    fitting = [run for run in runs if run.id == name] or [run for run in runs if fnmatchcase(run.id, f"*{name or ''}*")]
    if len(fitting) == 1:
        return fitting[0]
    what = f"{folder} holds a benchmark of {len(runs)} runs"
    if name is not None:
        what += f", and {len(fitting) or 'none'} of them {'fit' if fitting else 'fits'} {name!r}"
    raise UsageError(
        f"{what}.",
        f"Choose one with --run and its name, or a part of it with wildcards:\n{_names(fitting or runs)}",
    )


def _names(runs: Sequence[RunRecord]) -> str:
    more = [f"and {len(runs) - LISTED} more"] if len(runs) > LISTED else []
    return "\n".join(f"  {name}" for name in [*(run.id for run in runs[:LISTED]), *more])


def stored_replies(folder: str, role: Role) -> list[Reply]:
    """The replies a role got in a stored run, for the replay model."""
    with closing(open_store(Path(folder), write=False)) as store:
        record = only_run(store, Path(folder))
        return [call.reply for call in store.calls(record.id) if call.role is role]


def stored_reports(folder: str) -> tuple[DeviceFacts, dict[tuple[str, str, str, Score, bool], EvalReport]]:
    """Every report in a store by task, candidate, entry, score and whether it is of a final, for the replay evaluator.

    A store may hold a source judged by either score, above all the reference.
    """
    with closing(open_store(Path(folder), write=False)) as store:
        records = store.runs()
        if not records:
            raise StoreError(f"The store in {folder} holds no run.", "Name a run folder that does.")
        found: dict[tuple[str, str, str, Score, bool], EvalReport] = {}
        for record in records:
            score, final = Score(record.settings["evaluation"]["score"]), store.final(record.id)
            for node in store.nodes(record.id):
                if node.source is None:
                    continue
                key = (record.task.source, node.source, Entry.REFERENCE if node.id == ROOT_ID else Entry.CANDIDATE)
                found[*key, score, False] = node.report
                if final is not None and final.node_id == node.id:
                    found[*key, Score.VERIFIED, True] = final.verified
                    found[*key, Score.KERNELBENCH, True] = final.kernelbench
        return records[0].device, found


def stored_timings(folder: Path, runs: Iterable[str]) -> dict[tuple[str, int], Timing]:
    """The samples of every correct node of some runs, by run and node."""
    with closing(open_store(folder, write=False)) as store:
        return {
            (run, node.id): node.report.timing
            for run in runs
            for node in store.nodes(run)
            if node.report.timing is not None
        }


@contextmanager
def new_store(folder: Path) -> Iterator[SqliteStore]:
    """A store for a new run. Where the run does not get as far as its first node, no trace of it stays."""
    existed = folder.exists()
    store = open_store(folder, write=True)
    if store.runs():
        store.close()
        raise UsageError(f"{folder} already holds a run.", f"Go on with it by: stark resume {folder}")
    try:
        yield store
    except BaseException:
        begun = any(store.nodes(record.id) for record in store.runs())
        store.close()
        if not begun:
            _remove(folder, existed)
        raise
    store.close()


def _remove(folder: Path, existed: bool) -> None:
    for name in ("stark.db", "stark.db-wal", "stark.db-shm", "writer.lock"):
        (folder / name).unlink(missing_ok=True)
    if not existed:
        folder.rmdir()
