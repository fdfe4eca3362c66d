"""The command line: reads what the user typed, calls the API, shows the result. Nothing else happens here.

Exit codes: 0 a faster kernel was found (or the command did what it says), 1 a fault of STARK itself (of doctor:
something is missing), 2 usage or bad input (of bench: not one task that works and tests anything), 3 the run ended
without a faster kernel (of judge: it is wrong; of verify: the claim does not hold), 4 it cannot be told whether a claim
holds, 5 the chat model's side, 6 the evaluating machine, 7 the run folder, 130 stopped by Ctrl-C or SIGTERM; the run
can be resumed.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from stark import cli_bench, cli_evidence, cli_show
from stark.cli_doctor import doctor
from stark.cli_options import (
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
from stark.errors import StarkError, UsageError
from stark.interfaces import STOPPED
from stark.models import PLAYBOOK
from stark.view import terminal
from stark_worker.baselines import COMPILED
from stark_worker.protocol import DeviceFacts

NOT_IMPROVED = 3
BEST_FILE = "best.py"  # the best kernel, in its run's folder

app = typer.Typer(
    help="Makes a PyTorch model faster with custom kernels that are checked and timed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog=(__doc__ or "").partition("\n\n")[2],
)


@app.command()
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
    from stark.api import prepare, start
    from stark.config import load_settings
    from stark.store.file import FILE_NAME

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
    terminal.show_start(f"STARK optimises {task}", _facts(settings, job.folder))
    _finish(start(job, terminal.Progress(), signals=True), job.folder)


@app.command()
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
    from stark.api import change, go_on
    from stark.store import open_store
    from stark.stored import only_run

    roles = {"model": model, "base_url": base_url, "api_key_env": api_key_env}
    options = {**limits(attempts, tokens, usd, minutes), "jobs": jobs, "roles": roles}
    changed = change(sets or [], given(options))
    progress = terminal.Progress()
    with closing(open_store(folder, write=True, create=False)) as store:
        record = only_run(store, folder)
        nodes = store.nodes(record.id)
    progress.learn(nodes)
    terminal.show_start(f"STARK goes on with {record.task.name}", [("run", str(folder)), ("nodes", str(len(nodes)))])
    _finish(go_on(folder, changed, progress, signals=True), folder)


@app.command()
def judge(
    task: TaskFile,
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE.py", help="File that defines ModelNew.")],
    precision: PrecisionName = None,
    score: ScoreName = None,
    target: TargetName = None,
    evaluator: EvaluatorName = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", metavar="FILE", help="Judge as the final of a run does, and write the evidence here."),
    ] = None,
    config: SettingsFile = None,
    sets: Assignments = None,
) -> None:
    """Check and time one kernel against a task. Exit code 0: it is correct, 3: it is not."""
    from stark.api import judge as judge_candidate
    from stark.config import load_settings
    from stark.task import load_candidate, load_task

    options = given(judging(precision, score, target, evaluator, allow_weak_sandbox))
    settings = load_settings(config, sets or [], options).evaluation
    if bundle is not None:
        if as_json:
            raise UsageError("What --bundle writes is told in words.", "Give --json or --bundle.")
        _judge_finally(load_task(task), load_candidate(candidate), settings, bundle)
        return
    reference, report = asyncio.run(judge_candidate(load_task(task), load_candidate(candidate), settings))
    terminal.show_verdict(report, reference, as_json)
    if report.timing is None:
        raise typer.Exit(NOT_IMPROVED)


def _judge_finally(task: Any, candidate: str, settings: Any, file: Path) -> None:
    from stark.api import judge_finally, versions
    from stark.view import exports

    device, final = asyncio.run(judge_finally(task, candidate, settings))
    terminal.show_final(final, "The kernel")
    if not final.holds:
        terminal.say(final.report.log)
        raise typer.Exit(NOT_IMPROVED)
    evidence = exports.bundle_of_kernel(task, candidate, final, settings, (device, versions()))
    terminal.show_bundle(file, exports.write_bundle(file, evidence))


@app.command()
def baseline(
    task: TaskFile,
    precision: PrecisionName = None,
    target: TargetName = None,
    evaluator: EvaluatorName = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    config: SettingsFile = None,
    sets: Assignments = None,
    fresh: Annotated[bool, typer.Option(help="Measure again what was measured before.")] = False,
) -> None:
    """Time a task under PyTorch eager, torch.compile, and torch.compile max-autotune."""
    from stark.api import measure_baselines
    from stark.config import load_settings
    from stark.task import load_task

    options = given(judging(precision, None, target, evaluator, allow_weak_sandbox))
    settings = load_settings(config, sets or [], options).evaluation
    asyncio.run(measure_baselines(load_task(task), settings, terminal.Baselines(), fresh=fresh))


@app.command("pack-worker")
def pack_worker(file: Annotated[Path, typer.Argument(metavar="FILE.pyz", help="The file to write.")]) -> None:
    """Make the worker one file, to be copied to a machine that has torch and run there with python."""
    from stark.view import exports

    exports.write_worker(file)
    terminal.say(f"Copy {file} to the machine and run there: python {file.name} serve FOLDER --target cpu|cuda|triton")


@app.command()
def config(file: SettingsFile = None, sets: Assignments = None, method: MethodName = None) -> None:
    """Print the effective settings with their meaning."""
    from stark.config import explain, load_settings

    terminal.show_settings(explain(load_settings(file, sets or [], given({"method": method}))))


@app.command()
def graph(
    method: Annotated[str, typer.Option(help="The method whose workflow is drawn.")] = "stark",
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE.svg", help="Write an SVG here.")] = None,
) -> None:
    """Draw one attempt as the compiled graph runs it: Mermaid on the terminal, or an SVG file."""
    from stark.method import workflow_edges
    from stark.view import drawing, exports

    edges = workflow_edges(method)
    if output is None:
        terminal.say(drawing.as_mermaid(edges))
        return
    exports.write_text(output, drawing.as_svg(edges))
    terminal.say(f"The drawing is in {output}.")


for command in (*cli_show.COMMANDS, *cli_bench.COMMANDS, *cli_evidence.COMMANDS, doctor):
    app.command()(command)


def main() -> None:
    """Run the command line; every foreseen failure ends in a sentence and a documented exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may write what a terminal cannot show
    try:
        app()
    except StarkError as error:
        terminal.show_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # pressed before a run began, or once more when it had ended
        sys.exit(INTERRUPTED)


def _finish(work: Any, folder: Path) -> None:
    try:
        result = asyncio.run(work)
    except asyncio.CancelledError:
        terminal.say("Stopped before anything new was measured.")
        raise typer.Exit(INTERRUPTED) from None
    found, settings = result.best is not None, _settings(folder)
    best = _export_best(folder, found)
    compiled = _measure_compiled(folder) if found and not result.stopped and settings.evaluation.torch_compile else None
    priced = all(one.usd is not None for one in cli_show.read_usage(folder).values())
    terminal.show_result(result, folder, compiled, best, priced)
    if settings.roles.plan.model == settings.roles.solo.model == PLAYBOOK:
        terminal.show_first_steps()
    if result.reason == STOPPED:
        raise typer.Exit(INTERRUPTED)
    if not result.improved:
        raise typer.Exit(NOT_IMPROVED)


def _settings(folder: Path) -> Any:
    from stark.stored import settings_of

    return settings_of(cli_show.read(folder)[0])


def _measure_compiled(folder: Path) -> Any:
    """What torch.compile makes of a run's task. A comparison is no reason to lose the result, whatever happens."""
    from stark.api import measure_baselines

    terminal.say("Times torch.compile for comparison ...")
    try:
        task, settings = cli_show.read(folder)[0].task, _settings(folder).evaluation
        return asyncio.run(measure_baselines(task, settings, names=[COMPILED], in_turns=True))[COMPILED]
    except KeyboardInterrupt:
        return None
    except (StarkError, OSError) as error:
        terminal.say(f"It was not timed: {error}")
        return None


def _export_best(folder: Path, found: bool) -> Path | None:
    """The winner as a file. Where there is none any more, none is left: it was refuted."""
    from stark.view import exports

    if not found:
        (folder / BEST_FILE).unlink(missing_ok=True)
        return None
    record, nodes = cli_show.read(folder)
    exports.write_best(folder / BEST_FILE, record, nodes, cli_show.read_final(folder))
    return folder / BEST_FILE


def _facts(settings: Any, folder: Path) -> list[tuple[str, str]]:
    from stark.method import find_method
    from stark.models import describe

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
    from stark.api import models_to_estimate, unstarted
    from stark.estimate import estimate

    settings = job.settings
    unknown = DeviceFacts(name="the evaluating machine", kind=settings.evaluation.target)
    rows = estimate(unstarted(job, unknown), settings, models_to_estimate(settings))
    terminal.show_estimate(rows, settings.budget.attempts, settings.budget.usd, settings.budget.tokens)


if __name__ == "__main__":
    main()
