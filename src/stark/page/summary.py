"""A run as one row of a list or one cell of a matrix."""

from __future__ import annotations

import enum

from stark.analysis.metrics import compute_metrics
from stark.core.bound import judged_speed_of_light
from stark.core.interfaces import StoreReader
from stark.core.records import Ending, EndReason, RunRecord
from stark.core.tree import ROOT_ID, attempts_of
from stark.page.run_document import Json, add_usage
from stark_worker.protocol.errors import Outcome


class State(enum.StrEnum):
    """State of a stored run."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPED = "stopped"  # it has more to do, and nothing writes to it
    FAULT = "fault"
    ENDED = "ended"


def summarise_run(store: StoreReader, record: RunRecord, is_held: bool = False) -> Json:
    """Return a run in a few figures; reads no long text."""
    judgements, final, ending = store.judgements(record.id), store.final(record.id), store.ending(record.id)
    is_measured = any(each.id == ROOT_ID and each.runtime_ms is not None for each in judgements)
    metrics = compute_metrics(judgements, final) if is_measured else None
    attempts = attempts_of(judgements)
    root = store.node(record.id, ROOT_ID) if is_measured else None
    best_ms = metrics.best_ms if metrics else None
    light = judged_speed_of_light(root.report.bound, judgements) if root else None
    is_begun = bool(judgements) or bool(store.unfinished(record.id))
    return {
        "run": record.id,
        "created_at": record.created_at,
        "task": record.task.name,
        "level": record.task.level,
        "number": record.task.number,
        "kind": record.kind,
        "method": record.method,
        "seed": record.settings["seed"],
        "score": record.settings["evaluation"]["score"],
        "target": record.settings["evaluation"]["target"],
        "device": record.device.name,
        "state": find_state(ending, is_begun, is_held),
        "ending": ending and ending.reason.meaning,
        "message": ending.message if ending else "",
        "attempts": len(attempts),
        "correct": sum(each.outcome is Outcome.OK for each in attempts),
        "budget": record.settings["budget"]["attempts"],
        "root_ms": metrics and metrics.root_ms,
        "best_ms": best_ms,
        "share": light and light.share(best_ms),
        "is_bound_certain": light and light.is_certain,
        "speedup": metrics and metrics.speedup,
        "interval": final and final.speedup_interval,
        "is_confirmed": bool(final and final.holds),
        "times": [[each.label, each.runtime_ms] for each in attempts] if record.kind == "baselines" else [],
        "spent": add_usage(store.usage(record.id)),
        "seconds": store.seconds(record.id),
    }


def find_state(ending: Ending | None, is_begun: bool, is_held: bool) -> State:
    """Return the state of a run; ``is_held`` is true if a process writes to its store."""
    if ending is not None and ending.reason is EndReason.FAULT:
        return State.FAULT
    if ending is not None:
        return State.STOPPED if ending.reason is EndReason.STOPPED else State.ENDED
    if not is_begun:
        return State.WAITING
    return State.RUNNING if is_held else State.STOPPED
