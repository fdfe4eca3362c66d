"""The Python API: from a task file or a run folder to a result. The command line uses it too."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stark.capture.files import load_task
from stark.capture.live import Live, capture, load_module
from stark.core.errors import SettingsError, UsageError
from stark.core.interfaces import Evaluator, Listener
from stark.core.records import Ending, EndReason
from stark.core.settings import Roles, Settings
from stark.core.task import Task, load_candidate
from stark.core.tree import Role, attempts_of
from stark.evaluation.open import borrow_or_open, open_evaluator
from stark.models.open import check_addresses
from stark.progress.board import Board, NodeLine, RunPlan
from stark.run.assembly import (
    Job,
    assemble,
    check_attempts,
    check_device,
    check_playbook,
    check_prices,
    new_run_record,
    open_models,
)
from stark.run.events import recording
from stark.run.interrupts import Stoppable, interruptible, run_sync
from stark.run.judge import Baselines, Judged, MeasuredBound, measure_baselines, measure_bound
from stark.run.judge import judge as judge_candidate
from stark.run.loop import AS_UNINTERRUPTED, DEFAULT_RULES, Run
from stark.run.methods import TEAM_ROLES, find_method, templates_of, with_stops
from stark.run.python.progress import open_view
from stark.run.python.words import read_words
from stark.run.result import Result
from stark.run.settings_loader import (
    PLACES,
    change_settings,
    load_settings,
    merge_layers,
    parse_assignment,
    refuse_unknown,
    without_old_address,
)
from stark.store.lookup import load_reports, new_store, only_run, settings_of
from stark.store.open import open_store

MAY_CHANGE_ON_RESUME = ("budget", "jobs", "limits", "roles")


def optimize(task: str | Path | Any, inputs: Any = None, **options: Any) -> Result:
    """Make a task file or a live module faster, and return the result. Works in a script and in a notebook.

    ``inputs`` are example inputs of a module: a tuple is positional, a dict named. Further keywords are as in
    ``aoptimize``.
    """
    return run_sync(aoptimize(task, inputs, **options))


async def aoptimize(
    task: str | Path | Any,
    inputs: Any = None,
    *,
    settings_file: str | Path | None = None,
    run: str | Path | None = None,
    start_from: str | Path | None = None,
    hint: str = "",
    sets: Sequence[str] = (),
    progress: bool = True,
    listener: Listener | None = None,
    **options: Any,
) -> Result:
    """Do what ``optimize`` does, in a running event loop.

    ``options`` are the words of the command line, ``target="cuda", attempts=10, model="openai:gpt-5"``, or settings by
    group, ``budget={"attempts": 10}``; ``sets`` are assignments, ``["search.epsilon=0.4"]``. A ``listener`` receives
    every event in place of the view that ``progress`` shows.
    """
    settings, live = _read_arguments(task, inputs, hint, settings_file, sets, options)
    folder, given = Path(run) if run else None, Path(start_from) if start_from else None
    job = prepare(live.task if live else Path(task), with_stops(settings), folder, given, hint)
    return replace(await start(job, listener or open_view(progress)), live=live)


def _read_arguments(
    task: Any, inputs: Any, hint: str, file: str | Path | None, sets: Sequence[str], options: Mapping[str, Any]
) -> tuple[Settings, Live | None]:
    """Return the settings, and the live module if there is one; its weights decide on the precision."""
    live = None if isinstance(task, str | Path) else capture(task, inputs, hint)
    if live is None and inputs is not None:
        raise UsageError("A task file makes its inputs itself.", "Leave them out, or give a module.")
    layers = [{"evaluation": {"precision": live.precision}}] if live else []
    options = merge_layers([*layers, *read_words(options)])
    return load_settings(Path(file) if file else None, sets, options), live


def _task_of(task: Any, live: Live | None) -> Task:
    return live.task if live else load_task(Path(task))


def resume(
    run: str | Path,
    *,
    sets: Sequence[str] = (),
    progress: bool = True,
    listener: Listener | None = None,
    **options: Any,
) -> Result:
    """Resume a run that was stopped or killed, or extend it with a larger budget."""
    changed = change_on_resume(sets, merge_layers(read_words(options)))
    return run_sync(resume_run(Path(run), changed, listener or open_view(progress)))


def judge(task: str | Path | Any, candidate: str | Path, inputs: Any = None, **options: Any) -> Judged:
    """Check and time one kernel, given as a file or as source, against a task file or a live module."""
    settings, live = _read_arguments(task, inputs, "", None, (), options)
    is_source = isinstance(candidate, str) and "\n" in candidate
    source = str(candidate) if is_source else load_candidate(Path(candidate))
    found = run_sync(judge_candidate(_task_of(task, live), source, settings.evaluation))
    return Judged(*found)


def baseline(task: str | Path | Any, inputs: Any = None, **options: Any) -> Baselines:
    """Time a task file or a live module under eager PyTorch and torch.compile."""
    settings, live = _read_arguments(task, inputs, "", None, (), options)
    return Baselines(run_sync(measure_baselines(_task_of(task, live), settings.evaluation)))


def bound(task: str | Path | Any, inputs: Any = None, **options: Any) -> MeasuredBound:
    """Return the time that no kernel for a task file or a live module can beat, and the share of it that is reached."""
    settings, live = _read_arguments(task, inputs, "", None, (), options)
    return run_sync(measure_bound(_task_of(task, live), settings.evaluation))


def load(path: str | Path) -> Any:
    """Read a module that ``result.save(path)`` wrote. Its code runs, so the file has to be trusted."""
    return load_module(Path(path))


def prepare(
    task: Path | Task, settings: Settings, folder: Path | None = None, given: Path | None = None, hint: str = ""
) -> Job:
    """Read and check all input of a run before anything is started or written."""
    task = load_task(task, hint) if isinstance(task, Path) else task
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    templates = templates_of(settings)
    check_prices(settings, open_models(settings))
    check_playbook(task, settings)
    return Job(
        task,
        settings,
        folder or Path("runs") / f"{task.name}-{stamp}-{secrets.token_hex(2)}",
        load_candidate(given) if given else None,
        templates,
    )


async def start(
    job: Job,
    listener: Listener = lambda event: None,
    signals: bool = False,
    board: Board | None = None,
    evaluator: Evaluator | None = None,
) -> Result:
    """Start a new run in its own folder. The board shows its progress. A given evaluator stays open."""
    roles = [getattr(job.settings.roles, role) for role in find_method(job.settings.method).roles]
    await asyncio.to_thread(check_addresses, roles)
    with interruptible(signals) as running:
        async with borrow_or_open(evaluator, job.settings.evaluation, load_reports) as judging:
            with new_store(job.folder) as store:
                record = new_run_record(job, await judging.device())
                store.create(record)
                with recording(job.folder, board, listener) as (shown, record_event):
                    shown.add(RunPlan.of(record))
                    return await drive(assemble(record, store, judging, record_event), running, signals)


async def resume_run(
    folder: Path,
    change: Callable[[Settings], Settings] = lambda settings: settings,
    listener: Listener = lambda event: None,
    signals: bool = False,
    board: Board | None = None,
) -> Result:
    """Resume the run of a folder. The board shows its progress."""
    with interruptible(signals) as running, closing(open_store(folder, write=True, create=False)) as store:
        record = only_run(store, folder)
        settings = change(settings_of(record))
        if settings.budget.attempts != record.settings["budget"]["attempts"]:
            begun = len(attempts_of(store.judgements(record.id))) + len(store.unfinished(record.id))
            check_attempts(record.id, settings, begun)
        check_prices(settings, open_models(settings))
        if settings.model_dump(mode="json") != record.settings:
            store.amend(record.id, settings.model_dump(mode="json"))
            record = only_run(store, folder)
        async with open_evaluator(settings.evaluation, load_reports) as evaluator:
            check_device(record.device, await evaluator.device())
            rules = AS_UNINTERRUPTED if record.labels else DEFAULT_RULES  # labels: a benchmark made it
            with recording(folder, board, listener) as (shown, record_event):
                shown.add(RunPlan.of(record), map(NodeLine.of, store.nodes(record.id)))
                return await drive(assemble(record, store, evaluator, record_event, rules=rules), running, signals)


def change_on_resume(
    sets: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> Callable[[Settings], Settings]:
    """Return a change of stored settings, limited to settings that do not make it another experiment."""
    layer = merge_layers([*map(parse_assignment, sets), options or {}])
    refuse_unknown(layer)
    for group, values in layer.items():
        moves = group == "evaluation" and set(values) <= set(PLACES)
        if group not in MAY_CHANGE_ON_RESUME and not moves:
            raise SettingsError(
                f"A resumed run keeps its setting {group}.",
                f"Only {', '.join(MAY_CHANGE_ON_RESUME)} may change; start a new run for anything else.",
            )
    return lambda settings: change_settings(settings, [_for_each_role(layer, settings.roles)])


def _for_each_role(layer: Mapping[str, Any], before: Roles) -> dict[str, Any]:
    """Copy what is given for all roles to each role: the roles of a stored run have values of their own."""
    roles = layer.get("roles", {})
    shared = {name: roles[name] for name in ("model", "base_url", "api_key_env", "temperature") if name in roles}
    each: dict[str, Any] = {}
    for role in (*TEAM_ROLES, Role.SOLO):
        given = {**shared, **roles.get(role.value, {})}
        same = given.get("model") in (None, getattr(before, role).model)
        each[role.value] = given if same else without_old_address(given)
    return {**layer, "roles": {**roles, **each}}


async def drive(run: Run, running: list[Stoppable], signals: bool) -> Result:
    """Run to the end and record why it ended. With ``signals``, a run that the user cancels still returns a result."""
    running.append(run)
    run.store.end(run.record.id, Ending(EndReason.STOPPED, "The run has not ended yet."))
    try:
        result = await run.optimize()
        run.store.end(run.record.id, Ending(result.reason))
        return result
    except asyncio.CancelledError:
        if not signals or not run.tree:
            raise
        return replace(run.result(), reason=EndReason.STOPPED)
