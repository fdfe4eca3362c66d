"""TODO."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from stark.cli import show
from stark.cli.options import (
    INTERRUPTED,
    AllowWeakSandbox,
    ApiKeyEnv,
    Assignments,
    Attempts,
    BaseUrl,
    Changes,
    EvaluatorName,
    Jobs,
    MethodName,
    Minutes,
    ModelName,
    PrecisionName,
    RunFolder,
    ScoreName,
    SettingsFile,
    TargetName,
    TaskFile,
    Tokens,
    Usd,
    given,
    judging,
    limits,
)
from stark.cli.terminal.progress import Progress
from stark.cli.terminal.run import show_estimate, show_first_steps, show_result, show_start
from stark.cli.terminal.screen import say
from stark.core.errors import StarkError, UsageError
from stark.core.records import STOPPED
from stark.models.open import PLAYBOOK
from stark_worker.protocol.baselines import COMPILED
from stark_worker.protocol.report import DeviceFacts

NOT_IMPROVED = 3
BEST_FILE = "best.py"  # the best kernel, in its run's folder


def optimize(
    task: TaskFile,
    start_from: Annotated[Path | None, typer.Option("--from", help="A kernel file (ModelNew) to start from.")] = None,
    hint: Annotated[str, typer.Option(help="Advice of your own that every agent is shown.")] = "",
    precision: PrecisionName = None,
    score: ScoreName = None,
    target: TargetName = None,
    method: MethodName = None,
    model: ModelName = None,
    plan_model: Annotated[str | None, typer.Option(help="Chat model of the plan agent.")] = None,
    code_model: Annotated[str | None, typer.Option(help="Chat model of the code agent.")] = None,
    debug_model: Annotated[str | None, typer.Option(help="Chat model of the debug agent.")] = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    attempts: Attempts = None,
    tokens: Tokens = None,
    usd: Usd = None,
    minutes: Minutes = None,
    jobs: Jobs = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice of the search.")] = None,
    evaluator: EvaluatorName = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    run: Annotated[Path | None, typer.Option("--run", metavar="DIR", help="Folder of the run.")] = None,
    config: SettingsFile = None,
    sets: Assignments = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate calls, tokens and money; start nothing.")
    ] = False,
) -> None:
    """Make a task faster: grow a tree of candidates, keep the fastest correct one."""
    from stark.run.api import prepare, start
    from stark.run.config import load_settings
    from stark.store.connection import FILE_NAME

    options = {
        **limits(attempts, tokens, usd, minutes),
        "method": method,
        "jobs": jobs,
        "seed": seed,
        **judging(precision, score, target, evaluator, allow_weak_sandbox),
        "roles": {
            "model": model,
            "base_url": base_url,
            "api_key_env": api_key_env,
            "plan": {"model": plan_model},
            "code": {"model": code_model},
            "debug": {"model": debug_model},
        },
    }
    settings = load_settings(config, sets or [], given(options))
    job = prepare(task, settings, run, start_from, hint)
    if dry_run:
        _show_estimate(job)
        return
    if not (job.folder / FILE_NAME).exists() and (job.folder / BEST_FILE).exists():
        raise UsageError(f"{job.folder} has a {BEST_FILE}, where the run's own would be.", "Choose another --run.")
    show_start(f"STARK optimises {task}", _facts(settings, job.folder))
    _finish(start(job, Progress(), signals=True), job.folder)


def resume(
    folder: RunFolder,
    attempts: Attempts = None,
    tokens: Tokens = None,
    usd: Usd = None,
    minutes: Minutes = None,
    jobs: Jobs = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    sets: Changes = None,
) -> None:
    """Go on with a run that was stopped or killed, or extend a finished one."""
    from stark.run.api import change, go_on
    from stark.store.lookup import only_run
    from stark.store.open import open_store

    roles = {"model": model, "base_url": base_url, "api_key_env": api_key_env}
    options = {**limits(attempts, tokens, usd, minutes), "jobs": jobs, "roles": roles}
    changed = change(sets or [], given(options))
    progress = Progress()
    with closing(open_store(folder, write=True, create=False)) as store:
        record = only_run(store, folder)
        nodes = store.nodes(record.id)
    progress.learn(nodes)
    show_start(f"STARK goes on with {record.task.name}", [("run", str(folder)), ("nodes", str(len(nodes)))])
    _finish(go_on(folder, changed, progress, signals=True), folder)


def _finish(work: Any, folder: Path) -> None:
    try:
        result = asyncio.run(work)
    except asyncio.CancelledError:
        say("Stopped before anything new was measured.")
        raise typer.Exit(INTERRUPTED) from None
    found, settings = result.best is not None, _settings(folder)
    best = _export_best(folder, found)
    compiled = _measure_compiled(folder) if found and not result.stopped and settings.evaluation.torch_compile else None
    priced = all(one.usd is not None for one in show.read_usage(folder).values())
    show_result(result, folder, compiled, best, priced)
    if settings.roles.plan.model == settings.roles.solo.model == PLAYBOOK:
        show_first_steps()
    if result.reason == STOPPED:
        raise typer.Exit(INTERRUPTED)
    if not result.improved:
        raise typer.Exit(NOT_IMPROVED)


def _settings(folder: Path) -> Any:
    from stark.store.lookup import settings_of

    return settings_of(show.read(folder)[0])


def _measure_compiled(folder: Path) -> Any:
    """What torch.compile makes of a run's task. A comparison is no reason to lose the result, whatever happens."""
    from stark.run.judge import measure_baselines

    say("Times torch.compile for comparison ...")
    try:
        task, settings = show.read(folder)[0].task, _settings(folder).evaluation
        return asyncio.run(measure_baselines(task, settings, names=[COMPILED], in_turns=True))[COMPILED]
    except KeyboardInterrupt:
        return None
    except (StarkError, OSError) as error:
        say(f"It was not timed: {error}")
        return None


def _export_best(folder: Path, found: bool) -> Path | None:
    """The winner as a file. Where there is none any more, none is left: it was refuted."""
    from stark.report import exports

    if not found:
        (folder / BEST_FILE).unlink(missing_ok=True)
        return None
    record, nodes = show.read(folder)
    exports.write_best(folder / BEST_FILE, record, nodes, show.read_final(folder))
    return folder / BEST_FILE


def _facts(settings: Any, folder: Path) -> list[tuple[str, str]]:
    from stark.models.open import describe
    from stark.run.methods import find_method

    names = {describe(getattr(settings.roles, role).model) for role in find_method(settings.method).roles}
    limits = f"{settings.budget.attempts} attempts, ${settings.budget.usd:.2f}"
    return [
        ("method", f"{settings.method} ({settings.search.policy})"),
        ("model", ", ".join(sorted(names))),
        ("target", f"{settings.evaluation.target}, {settings.evaluation.precision}, {settings.evaluation.score}"),
        ("limits", limits),
        ("run", str(folder)),
    ]


def _show_estimate(job: Any) -> None:
    from stark.run.assembly import models_to_estimate, unstarted
    from stark.run.estimate import estimate

    settings = job.settings
    unknown = DeviceFacts(name="the evaluating machine", kind=settings.evaluation.target)
    rows = estimate(unstarted(job, unknown), settings, models_to_estimate(settings))
    show_estimate(rows, settings.budget.attempts, settings.budget.usd, settings.budget.tokens)


COMMANDS = (optimize, resume)
