"""Put together: from a task file or a run folder to a result. The command line and notebooks both come through here."""

from __future__ import annotations

import asyncio
import platform
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stark.agents.prompts import Prompts, Scene, load_templates
from stark.agents.roles import Team
from stark.config import change_settings, load_settings, merged, of_another_model, parse_assignment, refuse_unknown
from stark.errors import SettingsError, UsageError
from stark.evaluation import open_evaluator
from stark.evaluation.baselines import KeptBaselines
from stark.finals import hold_final
from stark.interfaces import STOPPED, ChatModel, Ending, Evaluator, Final, Listener, RunRecord, Store, Usage
from stark.method import TEAM_ROLES, build_policy, build_workflow, find_method
from stark.metrics import attempts_of
from stark.models import is_provider, open_model, open_to_estimate
from stark.run import Result, Run, check_reference, eval_request
from stark.settings import EvaluationSettings, PromptSettings, Roles, RoleSettings, Settings
from stark.store import open_store
from stark.stored import new_store, only_run, settings_of, stored_replies, stored_reports
from stark.task import Task, load_candidate, load_task
from stark.tree import ROOT_ID, Role
from stark.waiting import Stoppable, interruptible, run_sync
from stark_worker.baselines import BASELINES, COMPILE_S, EAGER, baseline_source
from stark_worker.protocol import DeviceFacts, EvalReport

MAY_CHANGE_ON_RESUME = ("budget", "jobs", "roles")

OpenModels = dict[RoleSettings, ChatModel]
Estimating = dict[tuple[Role, RoleSettings], ChatModel]


@dataclass(frozen=True)
class Job:
    """What a user asked for, checked as far as that is possible before anything is started."""

    task: Task
    settings: Settings
    folder: Path
    given: str | None = None
    templates: dict[str, str] = field(default_factory=dict)


def optimize(
    task: str | Path,
    *,
    settings_file: str | Path | None = None,
    run: str | Path | None = None,
    start_from: str | Path | None = None,
    hint: str = "",
    sets: Sequence[str] = (),
    listener: Listener = lambda event: None,
    **options: Any,
) -> Result:
    """Make a task faster and return what was found. Works in a script and in a notebook.

    ``options`` are settings by group: ``optimize("task.py", method="stark", roles={"model": "openai:gpt-5"},
    budget={"attempts": 10})``; ``sets`` are assignments as on the command line, ``["search.epsilon=0.4"]``.
    """
    settings = load_settings(Path(settings_file) if settings_file else None, sets, options)
    job = prepare(Path(task), settings, Path(run) if run else None, Path(start_from) if start_from else None, hint)
    return run_sync(start(job, listener))


def resume(
    run: str | Path, *, sets: Sequence[str] = (), listener: Listener = lambda event: None, **options: Any
) -> Result:
    """Go on with a run that was stopped, killed, or is to be extended by a larger budget."""
    return run_sync(go_on(Path(run), change(sets, options), listener))


def prepare(
    task_path: Path, settings: Settings, folder: Path | None = None, given: Path | None = None, hint: str = ""
) -> Job:
    """Read and check everything a run needs from the user, before anything is started or written."""
    task = load_task(task_path, hint)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    templates = load_templates(settings.prompts)
    check_prices(settings, open_models(settings))
    return Job(
        task,
        settings,
        folder or Path("runs") / f"{task.name}-{stamp}-{secrets.token_hex(2)}",
        load_candidate(given) if given else None,
        templates,
    )


async def start(job: Job, listener: Listener = lambda event: None, signals: bool = False) -> Result:
    """Begin a new run in its own folder."""
    with interruptible(signals) as running:
        async with open_evaluator(job.settings.evaluation, stored_reports) as evaluator:
            with new_store(job.folder) as store:
                record = unstarted(job, await evaluator.device())
                store.create(record)
                return await drive(assemble(record, store, evaluator, listener), running, signals)


def unstarted(job: Job, device: DeviceFacts) -> RunRecord:
    """The record of a run that is about to begin."""
    return RunRecord(
        id=job.folder.resolve().name,
        created_at=datetime.now(UTC).isoformat(),
        task=job.task,
        given=job.given,
        settings=job.settings.model_dump(mode="json"),
        templates=job.templates,
        versions=versions(),
        device=device,
    )


async def go_on(
    folder: Path,
    changed: Callable[[Settings], Settings] = lambda settings: settings,
    listener: Listener = lambda event: None,
    signals: bool = False,
) -> Result:
    """Take up the run of a folder again."""
    with interruptible(signals) as running, closing(open_store(folder, write=True, create=False)) as store:
        record = only_run(store, folder)
        settings = changed(settings_of(record))
        if settings.budget.attempts != record.settings["budget"]["attempts"]:
            check_attempts(settings, len(attempts_of(store.judgements(record.id))) + len(store.unfinished(record.id)))
        check_prices(settings, open_models(settings))
        if settings.model_dump(mode="json") != record.settings:
            store.amend(record.id, settings.model_dump(mode="json"))
            record = only_run(store, folder)
        async with open_evaluator(settings.evaluation, stored_reports) as evaluator:
            check_device(record.device, await evaluator.device())
            return await drive(assemble(record, store, evaluator, listener), running, signals)


def change(sets: Sequence[str] = (), options: Mapping[str, Any] | None = None) -> Callable[[Settings], Settings]:
    """A change of a stored run's settings, restricted to what does not make it another experiment."""
    layer = merged([*map(parse_assignment, sets), options or {}])
    refuse_unknown(layer)
    for group in layer:
        if group not in MAY_CHANGE_ON_RESUME:
            raise SettingsError(
                f"A run that has begun keeps its setting {group}.",
                f"Only {', '.join(MAY_CHANGE_ON_RESUME)} may change; start a new run for anything else.",
            )
    return lambda settings: change_settings(settings, [_for_each_role(layer, settings.roles)])


def _for_each_role(layer: Mapping[str, Any], before: Roles) -> dict[str, Any]:
    """What is said of all roles, said of each: the roles of a stored run have their own values already."""
    roles = layer.get("roles", {})
    shared = {name: roles[name] for name in ("model", "base_url", "api_key_env", "temperature") if name in roles}
    each: dict[str, Any] = {}
    for role in (*TEAM_ROLES, Role.SOLO):
        said = {**shared, **roles.get(role.value, {})}
        same = said.get("model") in (None, getattr(before, role).model)
        each[role.value] = said if same else of_another_model(said)
    return {**layer, "roles": {**roles, **each}}


def assemble(
    record: RunRecord,
    store: Store,
    evaluator: Evaluator,
    listener: Listener,
    opened: OpenModels | None = None,
    has_answered: Callable[[Role], bool] = lambda role: False,
) -> Run:
    """The parts of a run, chosen by its stored settings."""
    settings = settings_of(record)
    scene = Scene.of(record.task, record.device, settings)
    templates = load_templates(PromptSettings()) | record.templates  # an older version may have stored fewer
    workflow = build_workflow(settings, Team(Prompts(templates, scene), settings))
    answered = {role: usage.calls for role, usage in store.usage(record.id).items()}
    models = open_models(settings, answered, opened)
    return Run(record, settings, store, build_policy(settings), workflow, models, evaluator, listener, has_answered)


async def drive(run: Run, running: list[Stoppable], signals: bool) -> Result:
    """Let a run go to its end, which is noted. By ``signals`` one that has a node is cancelled by its user, and has a
    result as well; whoever else cancels it wants none."""
    running.append(run)
    run.store.end(run.record.id, Ending(STOPPED, "It has not come to its end yet."))
    try:
        result = await run.optimize()
        run.store.end(run.record.id, Ending(result.reason))
        return result
    except asyncio.CancelledError:
        if not signals or not run.tree:
            raise
        return replace(run.result(), reason=STOPPED)


async def judge(task: Task, candidate: str, settings: EvaluationSettings) -> tuple[EvalReport, EvalReport]:
    """The reports on a task's own model and on a candidate for it."""
    async with open_evaluator(settings, stored_reports) as evaluator:
        reference = await evaluator.evaluate(eval_request(task, task.source, settings, entry="Model"))
        return reference, await evaluator.evaluate(replace(eval_request(task, candidate, settings), labelled=True))


async def judge_finally(
    task: Task, candidate: str, settings: EvaluationSettings, stranger: bool = False
) -> tuple[DeviceFacts, Final]:
    """What is measured on, and a candidate judged as the winner of a run is: by both scores, beside the reference.

    The reference of a ``stranger`` is confined as a candidate is.
    """
    async with open_evaluator(settings, stored_reports) as evaluator:
        request = replace(eval_request(task, candidate, settings), stranger=stranger)
        return await evaluator.device(), await hold_final(evaluator, request, ROOT_ID + 1)


async def measure_baselines(
    task: Task,
    settings: EvaluationSettings,
    told: Callable[[str, EvalReport], None] = lambda name, report: None,
    names: Sequence[str] = BASELINES,
    fresh: bool = False,
    in_turns: bool = False,
) -> dict[str, EvalReport]:
    """Eager and torch.compile by the same path as any candidate, or as any winner in turns with the reference; each is
    told as it comes.

    What was measured before on the same device with the same versions is not measured again, unless ``fresh``.
    """
    patient = settings.model_copy(update={"run_s": max(settings.run_s, COMPILE_S)})
    found = {}
    async with open_evaluator(patient, stored_reports) as evaluator:
        kept = KeptBaselines(await evaluator.device())
        for name in names:
            source, entry = baseline_source(task.source, name)
            request = eval_request(task, source, patient, entry)
            request = replace(request, rival_source=task.source) if in_turns else request
            known = None if fresh else kept.find(request)
            found[name] = known or await evaluator.evaluate(request)
            kept.keep(request, found[name])
            told(name, found[name])
            if name == EAGER:
                check_reference(found[name])
    return found


# -- checks that belong to no single part ---------------------------------------------------------------------------


def open_models(
    settings: Settings, answered: Mapping[Role, int] | None = None, opened: OpenModels | None = None
) -> dict[Role, ChatModel]:
    """The chat model of every role the method uses. Many runs share the connections to providers in ``opened``."""
    found = {}
    for role in find_method(settings.method).roles:
        wanted: RoleSettings = getattr(settings.roles, role)
        model = opened.get(wanted) if opened is not None else None
        found[role] = model or open_model(role, wanted, (answered or {}).get(role, 0), stored_replies)
        if opened is not None and is_provider(wanted):
            opened[wanted] = found[role]
    return found


def models_to_estimate(settings: Settings, opened: Estimating | None = None) -> dict[Role, ChatModel]:
    """The same for counting alone, which takes neither a key nor a name. As nobody is asked, many runs share any model
    in ``opened``."""
    opened = {} if opened is None else opened
    found: dict[Role, ChatModel] = {}
    for role in find_method(settings.method).roles:
        wanted: RoleSettings = getattr(settings.roles, role)
        if (role, wanted) not in opened:
            opened[role, wanted] = open_to_estimate(role, wanted, stored_replies)
        found[role] = opened[role, wanted]
    return found


def check_prices(settings: Settings, models: Mapping[Role, ChatModel]) -> None:
    """A limit on money means nothing for a model whose price nobody knows."""
    for role, model in models.items():
        if model.cost_usd(Usage(1, 1)) is None and settings.budget.tokens is None:
            raise SettingsError(
                f"The price of {model.name} ({role}) is not known, so a limit on money cannot hold.",
                "Limit its tokens instead, for example with --tokens 2000000.",
            )


def check_attempts(settings: Settings, begun: int) -> None:
    """A run of fewer attempts than it has is none: its best would be told as that of the fewer."""
    if begun > settings.budget.attempts:
        raise UsageError(
            f"The run has {begun} attempts: it cannot be one of {settings.budget.attempts} any more.",
            f"--attempts is how many it has in all: give at least {begun}, or leave it out.",
        )


def check_device(stored: DeviceFacts, here: DeviceFacts) -> None:
    """Times from two machines, or by two versions of what compiles and computes, do not belong into one tree."""
    if (stored.kind, stored.name, stored.cores) != (here.kind, here.name, here.cores):
        raise UsageError(
            f"This run was measured on {stored.name} ({stored.cores} cores), this is {here.name} ({here.cores} cores).",
            "Resume it where it began, or start a new run here with --from its best kernel.",
        )
    both = {name: (then, here.tools.get(name, then)) for name, then in stored.tools.items()}
    if other := [f"{name} {then}, here it is {now}" for name, (then, now) in both.items() if then != now]:
        raise UsageError(
            f"What is stored was measured with {'; '.join(other)}.",
            "Go on with the versions it began with, or begin anew in another folder.",
        )


def versions() -> dict[str, str]:
    """What the host part of a result depends on; the device facts hold the worker's side."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("stark-kernels", "langgraph", "pydantic-ai-slim"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
