"""Lists the stores in a folder for ``stark runs``."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from stark.analysis.metrics import RunMetrics, compute_metrics
from stark.core.bound import SpeedOfLight, judged_speed_of_light
from stark.core.errors import StarkError
from stark.core.interfaces import StoreReader
from stark.core.records import Final, Kind, RunRecord
from stark.core.tree import ROOT_ID, Judgement, attempts_of
from stark.progress.board import RunPlan
from stark.store.connection import FILE_NAME
from stark.store.lock import is_held
from stark.store.open import open_store

MAX_DEPTH = 3


@dataclass(frozen=True)
class Listed:
    """A store in a list. ``speedup`` of a benchmark is the geometric mean over its runs with a kernel."""

    folder: Path
    task: str = ""
    state: str = ""
    runs: int = 0
    speedup: float | None = None
    share_of_bound: float | None = None  # that the best kernel of a single search reaches
    is_bound_certain: bool | None = None
    made: int | None = None
    attempts: int | None = None
    usd: float | None = None
    age_s: float | None = None
    problem: str = ""  # why it cannot be read


def list_runs(folder: Path) -> list[Listed]:
    """Return the stores in a folder and below, the latest first. A store that cannot be read is listed with why."""
    found = [_read(path) for path in _find_stores(folder, MAX_DEPTH)]
    return sorted(found, key=lambda each: (each.age_s is None, each.age_s or 0.0, str(each.folder)))


def _find_stores(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / FILE_NAME).exists():
        yield folder
    elif depth and folder.is_dir():
        try:
            below = sorted(Path(each.path) for each in os.scandir(folder) if each.is_dir(follow_symlinks=False))
        except OSError:
            return
        for each in below:
            yield from _find_stores(each, depth - 1)


def _read(folder: Path) -> Listed:
    try:
        with closing(open_store(folder, write=False)) as store:
            return _describe(folder, store, store.runs())
    except (StarkError, ValueError, KeyError) as error:  # another program's file, a damaged one, another version
        return Listed(folder, state="unreadable", problem=str(error))


def _describe(folder: Path, store: StoreReader, records: list[RunRecord]) -> Listed:
    if not records:
        return Listed(folder, state="empty")
    judged = {record.id: store.judgements(record.id) for record in records}
    plans = [RunPlan.of(record) for record in records]
    searches = [plan for plan in plans if plan.kind is Kind.SEARCH]
    found = [_measure(judged[plan.run], store.final(plan.run)) for plan in searches]
    speedups = [each.speedup for each in found if each is not None and each.speedup is not None]
    best_ms = found[0].best_ms if len(found) == 1 and found[0] is not None else None
    light = _find_light(store, searches[0].run, judged[searches[0].run]) if best_ms is not None else None
    tasks = list(dict.fromkeys(plan.task for plan in plans))
    usages = [usage for record in records for usage in store.usage(record.id).values()]
    return Listed(
        folder,
        tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks, {len(records)} runs",
        _state(folder, store, records),
        len(records),
        statistics.geometric_mean(speedups) if speedups else None,
        light.share(best_ms) if light else None,
        light.is_certain if light else None,
        sum(len(attempts_of(judged[plan.run])) for plan in searches),
        sum(plan.attempts for plan in searches),
        None if any(usage.usd is None for usage in usages) else sum(store.spent(record.id).usd for record in records),
        max(0.0, time.time() - min(datetime.fromisoformat(record.created_at).timestamp() for record in records)),
    )


def _state(folder: Path, store: StoreReader, records: list[RunRecord]) -> str:
    endings = [store.ending(record.id) for record in records]
    known = [ending for ending in endings if ending is not None]
    if is_held(folder):
        return "running"
    if len(records) == 1:
        return known[0].reason.meaning if known else "no ending stored"
    done = sum(ending.reason.meaning == "done" or ending.reason.is_limit for ending in known)
    return "done" if done == len(records) else f"{done} of {len(records)} runs done"


def _measure(judged: list[Judgement], final: Final | None) -> RunMetrics | None:
    """Return the figures of a run; None if its reference has no time."""
    is_measured = any(each.id == ROOT_ID and each.runtime_ms is not None for each in judged)
    return compute_metrics(judged, final) if is_measured else None


def _find_light(store: StoreReader, run_id: str, judged: list[Judgement]) -> SpeedOfLight | None:
    root = store.node(run_id, ROOT_ID)
    return judged_speed_of_light(root.report.bound, judged) if root else None
