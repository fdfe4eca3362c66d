"""Stored runs: finding the run of a folder, its settings, replies and reports; and a place for a new run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import ValidationError

from stark.core.chat import Reply
from stark.core.errors import StoreError, StoreTooNew, UsageError
from stark.core.interfaces import StoreReader
from stark.core.records import RunRecord, judged_source
from stark.core.settings import Settings
from stark.core.tree import ROOT_ID, Role
from stark.store.flights_file import FILE_NAME as FLIGHTS_FILE
from stark.store.lock import LOCK_NAME
from stark.store.open import open_store
from stark.store.sqlite import SqliteStore
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing
from stark_worker.protocol.request import Entry, Score

MAX_LISTED_RUNS = 20  # in an error


def only_run(store: StoreReader, folder: Path) -> RunRecord:
    """Return the only run of a folder."""
    runs = store.runs()
    if not runs:
        raise StoreError(f"The store in {folder} holds no run.", "It was stopped before it began; start it again.")
    if len(runs) > 1:
        raise UsageError(
            f"{folder} holds a benchmark of {len(runs)} runs.",
            "Read it with stark report; resume it with the stark bench command that began it.",
        )
    return runs[0]


def settings_of(record: RunRecord) -> Settings:
    """Return the settings a run was stored with."""
    try:
        return Settings.model_validate(record.settings)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise StoreTooNew(
            f"The run {record.id} has a setting that this version does not know: {key}, {first['msg'].lower()}.",
            "Resume it with the version of STARK that began it; the store names it.",
        ) from error


def pick_run(store: StoreReader, folder: Path, name: str | None) -> RunRecord:
    """Return the run of a folder, or the run of a benchmark whose name matches in full or in part."""
    runs = store.runs()
    if not runs or (name is None and len(runs) == 1):
        return only_run(store, folder)
    matches = [run for run in runs if run.id == name] or [run for run in runs if fnmatchcase(run.id, f"*{name or ''}*")]
    if len(matches) == 1:
        return matches[0]
    what = f"{folder} holds a benchmark of {len(runs)} runs"
    if name is not None:
        what += f", and {len(matches) or 'none'} of them {'match' if matches else 'matches'} {name!r}"
    raise UsageError(
        f"{what}.",
        f"Choose one with --run and its name, or a part of it with wildcards:\n{_names(matches or runs)}",
    )


def _names(runs: Sequence[RunRecord]) -> str:
    more = [f"and {len(runs) - MAX_LISTED_RUNS} more"] if len(runs) > MAX_LISTED_RUNS else []
    return "\n".join(f"  {name}" for name in [*(run.id for run in runs[:MAX_LISTED_RUNS]), *more])


def load_replies(folder: str, role: Role) -> dict[int, list[Reply]]:
    """Return the replies to a role in a stored run by attempt, for the replay model."""
    found: dict[int, list[Reply]] = {}
    with closing(open_store(Path(folder), write=False)) as store:
        record = only_run(store, Path(folder))
        for call in store.calls(record.id):
            if call.role is role:
                found.setdefault(call.number, []).append(call.reply)
    return found


def load_reports(folder: str) -> tuple[DeviceFacts, dict[tuple[str, str, str, Score, bool], EvalReport]]:
    """Return the device and every report of a store, for the replay evaluator.

    The key of a report is task, candidate, entry, score, and True for a final check.
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
                    if final.drop_in is not None:
                        source = (record.task.source, judged_source(final.drop_in.source), Entry.CANDIDATE)
                        found[*source, Score.VERIFIED, True] = final.drop_in.report
        return records[0].device, found


def load_timings(folder: Path, runs: Iterable[str]) -> dict[tuple[str, int], Timing]:
    """Return the samples of every correct node of some runs, by run and node."""
    with closing(open_store(folder, write=False)) as store:
        return {
            (run, node.id): node.report.timing
            for run in runs
            for node in store.nodes(run)
            if node.report.timing is not None
        }


@contextmanager
def new_store(folder: Path) -> Iterator[SqliteStore]:
    """Make a store for a new run. Remove it again if the run fails before its first node."""
    existed = folder.exists()
    store = open_store(folder, write=True)
    if store.runs():
        store.close()
        raise UsageError(f"{folder} already holds a run.", f"Resume it with: stark resume {folder}")
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
    for name in ("stark.db", "stark.db-wal", "stark.db-shm", LOCK_NAME, FLIGHTS_FILE):
        (folder / name).unlink(missing_ok=True)
    if not existed:
        folder.rmdir()
