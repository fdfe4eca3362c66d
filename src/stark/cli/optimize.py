"""The commands that search: ``stark optimize`` and ``stark resume``."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from stark.cli.exit_codes import ExitCode
from stark.cli.live.view import View, print_lines
from stark.cli.options import (
    AllowWeakSandbox,
    ApiKeyEnv,
    Assignments,
    Attempts,
    Bar,
    BarName,
    BaseUrl,
    Changes,
    DeviceKind,
    EvaluatorName,
    Jobs,
    MethodName,
    Minutes,
    ModelName,
    Plain,
    PrecisionName,
    RayAddress,
    RunFolder,
    ScoreName,
    SettingsFile,
    StopAfter,
    StopAtBound,
    TargetName,
    TaskFile,
    Tokens,
    Usd,
    budget_options,
    drop_unset,
    evaluation_options,
)
from stark.cli.stored_run import read_final, read_run, read_usage
from stark.cli.terminal.progress import Progress
from stark.cli.terminal.run import is_faster_than, show_estimate, show_first_steps, show_result, show_start
from stark.cli.terminal.screen import console, format_limits, show_line, show_title
from stark.core.errors import StarkError, UsageError
from stark.core.records import EndReason
from stark.models.open import PLAYBOOK
from stark.progress.draw_run import draw_only_run, tree_lines
from stark.progress.words import fit
from stark_worker.protocol.baselines import COMPILED
from stark_worker.protocol.report import DeviceFacts

MAX_PRINTED_NODES = 60
BEST_FILE = "best.py"  # the best kernel, in its run's folder


def optimize(
    task: TaskFile,
    start_from: Annotated[Path | None, typer.Option("--from", help="A kernel file (ModelNew) to start from.")] = None,
    hint: Annotated[str, typer.Option(help="Advice for every agent.")] = "",
    precision: PrecisionName = None,
    score: ScoreName = None,
    target: TargetName = None,
    method: MethodName = None,
    model: ModelName = None,
    plan_model: Annotated[str | None, typer.Option(help="Chat model of the plan agent (default: --model).")] = None,
    code_model: Annotated[str | None, typer.Option(help="Chat model of the code agent (default: --model).")] = None,
    debug_model: Annotated[str | None, typer.Option(help="Chat model of the debug agent (default: --model).")] = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    attempts: Attempts = None,
    tokens: Tokens = None,
    usd: Usd = None,
    minutes: Minutes = None,
    stop_at_bound: StopAtBound = None,
    stop_after: StopAfter = None,
    jobs: Jobs = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the search (default: 0).")] = None,
    evaluator: EvaluatorName = None,
    ray_address: RayAddress = None,
    device_kind: DeviceKind = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="New folder for the run (default: in runs/).")
    ] = None,
    config: SettingsFile = None,
    sets: Assignments = None,
    beat: BarName = Bar.EAGER,
    plain: Plain = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate calls, tokens and money; start nothing.")
    ] = False,
) -> None:
    """Make a task faster: search for the fastest correct kernel."""
    show_title(f"STARK optimises {task}")
    from stark.run.api import prepare, start
    from stark.run.methods import with_stops
    from stark.run.settings_loader import load_settings
    from stark.store.connection import FILE_NAME

    options = {
        **budget_options(attempts, tokens, usd, minutes, stop_at_bound, stop_after),
        "method": method,
        "jobs": jobs,
        "seed": seed,
        **evaluation_options(precision, score, target, evaluator, allow_weak_sandbox, ray_address, device_kind),
        "roles": {
            "model": model,
            "base_url": base_url,
            "api_key_env": api_key_env,
            "plan": {"model": plan_model},
            "code": {"model": code_model},
            "debug": {"model": debug_model},
        },
    }
    settings = with_stops(load_settings(config, sets or [], drop_unset(options)))
    job = prepare(task, settings, run, start_from, hint)
    if dry_run:
        _show_estimate(job)
        return
    if not (job.folder / FILE_NAME).exists() and (job.folder / BEST_FILE).exists():
        raise UsageError(f"The run would overwrite {job.folder / BEST_FILE}.", "Choose another folder with --run DIR.")
    show_start(_describe_run(settings, job.folder))
    view = View(draw_only_run, Progress(), plain)
    _wait_and_report(start(job, view, signals=True, board=view.board), job.folder, beat, view)


def resume(
    folder: RunFolder,
    attempts: Attempts = None,
    tokens: Tokens = None,
    usd: Usd = None,
    minutes: Minutes = None,
    stop_at_bound: StopAtBound = None,
    stop_after: StopAfter = None,
    jobs: Jobs = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    sets: Changes = None,
    beat: BarName = Bar.EAGER,
    plain: Plain = False,
) -> None:
    """Continue a run that was stopped or killed, or extend a finished one."""
    show_title(f"STARK continues {folder}")
    from stark.run.api import change_on_resume, resume_run
    from stark.store.lookup import only_run
    from stark.store.open import open_store

    roles = {"model": model, "base_url": base_url, "api_key_env": api_key_env}
    options = {
        **budget_options(attempts, tokens, usd, minutes, stop_at_bound, stop_after),
        "jobs": jobs,
        "roles": roles,
    }
    changed = change_on_resume(sets or [], drop_unset(options))
    progress = Progress()
    with closing(open_store(folder, write=True, create=False)) as store:
        record = only_run(store, folder)
        nodes = store.nodes(record.id)
    progress.set_reference(nodes)
    show_start([("task", record.task.name), ("nodes", str(len(nodes)))])
    view = View(draw_only_run, progress, plain)
    _wait_and_report(resume_run(folder, changed, view, signals=True, board=view.board), folder, beat, view)


def _wait_and_report(work: Any, folder: Path, beat: Bar, view: View) -> None:
    try:
        with view:
            view.doing("Starting the evaluator")
            result = asyncio.run(work)
            found, settings = result.best is not None, _read_settings(folder)
            wants_compiled = settings.evaluation.torch_compile or beat is Bar.COMPILED
            compiled = _measure_compiled(folder, view) if found and not result.stopped and wants_compiled else None
    except asyncio.CancelledError:
        show_line("Stopped before anything new was measured.")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if view.is_live:
        _print_tree(view)
    best = _export_best(folder, found and result.contradiction is None)
    priced = all(one.usd is not None for one in read_usage(folder).values())
    show_result(result, folder, compiled, best, priced)
    if settings.roles.plan.model == settings.roles.solo.model == PLAYBOOK:
        show_first_steps()
    if result.reason == EndReason.STOPPED:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if result.contradiction:
        raise typer.Exit(ExitCode.UNRESOLVED)
    if not result.improved or (beat is Bar.COMPILED and not (compiled and is_faster_than(result, compiled))):
        raise typer.Exit(ExitCode.NOT_IMPROVED)


def _print_tree(view: View) -> None:
    """Print the tree that the live view showed last, so that it stays."""
    frame = view.frame(console.width, MAX_PRINTED_NODES)
    for run in view.board.runs.values():
        print_lines(fit(tree_lines(run, frame, MAX_PRINTED_NODES), frame))


def _read_settings(folder: Path) -> Any:
    from stark.store.lookup import settings_of

    return settings_of(read_run(folder)[0])


def _measure_compiled(folder: Path, view: View) -> Any:
    """Time torch.compile on a run's task. A failure must not lose the result of the run."""
    from stark.run.judge import measure_baselines

    view.doing("Timing torch.compile for comparison")
    try:
        task, settings = read_run(folder)[0].task, _read_settings(folder).evaluation
        return asyncio.run(measure_baselines(task, settings, names=[COMPILED], in_turns=True))[COMPILED]
    except KeyboardInterrupt:
        return None
    except (StarkError, OSError) as error:
        view.note(f"torch.compile was not timed: {error}")
        return None


def _export_best(folder: Path, found: bool) -> Path | None:
    """Write best.py, or delete it if no winner can take its model's place."""
    from stark.report import exports

    try:
        if found:
            record, nodes = read_run(folder)
            exports.write_best(folder / BEST_FILE, record, nodes, read_final(folder))
            return folder / BEST_FILE
    except UsageError as error:
        show_line(f"No {BEST_FILE}: {error}")
    (folder / BEST_FILE).unlink(missing_ok=True)
    return None


def _describe_run(settings: Any, folder: Path) -> list[tuple[str, str]]:
    from stark.models.open import describe_model
    from stark.run.methods import find_method

    names = {describe_model(getattr(settings.roles, role).model) for role in find_method(settings.method).roles}
    limits = [f"{settings.budget.attempts} attempts", _spending_limit(settings), *_describe_stops(settings)]
    budget = ", ".join(filter(None, limits))
    return [
        ("method", f"{settings.method} ({settings.search.policy})"),
        ("model", ", ".join(sorted(names))),
        ("target", f"{settings.evaluation.target}, {settings.evaluation.precision}, {settings.evaluation.score}"),
        ("limits", budget),
        ("run", str(folder)),
    ]


def _describe_stops(settings: Any) -> list[str]:
    """Describe what ends the run early."""
    share, attempts = settings.budget.stop_at_bound, settings.budget.stop_after
    return [
        *([f"{share:.0%} of the bound"] if share else []),
        *([f"{attempts} attempts without a gain"] if attempts else []),
    ]


def _spending_limit(settings: Any) -> str:
    """Return the limit that counts: money, or tokens if a price is not known; none for models that cost nothing."""
    from stark.core.chat import Usage
    from stark.run.assembly import models_to_estimate

    prices = [model.cost_usd(Usage(1000, 1000)) for model in models_to_estimate(settings).values()]
    if None in prices:
        return format_limits(None, settings.budget.tokens)
    return format_limits(settings.budget.usd, settings.budget.tokens) if any(prices) else ""


def _show_estimate(job: Any) -> None:
    from stark.run.assembly import models_to_estimate, new_run_record
    from stark.run.estimate import estimate

    settings = job.settings
    unknown = DeviceFacts(name="the evaluating machine", kind=settings.evaluation.target)
    rows = estimate(new_run_record(job, unknown), settings, models_to_estimate(settings))
    show_estimate(rows, settings.budget.attempts, settings.budget.usd, settings.budget.tokens)
