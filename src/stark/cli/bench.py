"""The commands about many runs: bench, report, compare."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stark.cli.options import (
    INTERRUPTED,
    AllowWeakSandbox,
    ApiKeyEnv,
    Assignments,
    BaseUrl,
    EvaluatorName,
    ModelName,
    PrecisionName,
    ScoreName,
    SettingsFile,
    TargetName,
    given,
    judging,
    limits,
)
from stark.cli.terminal import screen
from stark.core.errors import TaskError, UsageError

if TYPE_CHECKING:
    from stark.bench.cell import Cell
    from stark.bench.grid import GridFile, SettingsOf
    from stark.core.task import Task

Kernelbench = Annotated[Path | None, typer.Option("--kernelbench", metavar="DIR", help="A KernelBench checkout.")]


Dataset = Annotated[Path | None, typer.Option("--dataset", metavar="DIR", help="A snapshot of its data set.")]


Files = Annotated[Path | None, typer.Option("--tasks", metavar="PATH", help="A task file, or a folder of them.")]


Only = Annotated[
    list[str] | None, typer.Option("--only", help="level1, level1/26, level1/1-10 or '*Softmax*'; may be repeated.")
]


StoreFolder = Annotated[Path, typer.Option("--store", metavar="DIR", help="Where everything is kept.")]


AttemptsPerRun = Annotated[int | None, typer.Option("--attempts", help="How many attempts per run.")]


TokensPerRun = Annotated[int | None, typer.Option("--tokens", help="Most tokens to spend per run.")]


UsdPerRun = Annotated[float | None, typer.Option("--usd", help="Most US dollars to spend per run.")]


def bench(
    kernelbench: Kernelbench = None,
    dataset: Dataset = None,
    tasks: Files = None,
    grid_file: Annotated[
        Path | None,
        typer.Option(
            "--grid",
            metavar="FILE",
            help="What to run, such as configs/table-1.toml. Options take the place of what it says.",
        ),
    ] = None,
    subset: Annotated[
        str | None, typer.Option(help="representative, paper, or all. Unset: as --grid says, else all.")
    ] = None,
    only: Only = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", help="May be repeated. Unset: as --grid says, else all five.")
    ] = None,
    switch: Annotated[
        list[str] | None,
        typer.Option(
            "--switch",
            metavar="A.B=C,...",
            help="A further variant of each method: settings of search, windows, anchors, prompts and roles; may be "
            "repeated.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds, from 0 on. Unset: as --grid says, else one.")
    ] = None,
    store: StoreFolder = Path("runs/bench"),
    at_once: Annotated[int, typer.Option(min=1, help="How many runs are in flight at once.")] = 16,
    baselines: Annotated[
        bool | None, typer.Option(help="Also time torch.compile. Unset: as --grid says, else yes.")
    ] = None,
    both_scores: Annotated[
        bool | None, typer.Option(help="Judge each winner by the other score too. Unset: as --grid says, else no.")
    ] = None,
    judge_only: Annotated[
        Path | None,
        typer.Option(
            "--judge-only",
            metavar="DIR",
            help="Judge kernels another tool made, no search: files as KernelBench names them, "
            "level_1_problem_26_sample_0_kernel.py.",
        ),
    ] = None,
    precision: PrecisionName = None,
    score: ScoreName = None,
    target: TargetName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    attempts: AttemptsPerRun = None,
    tokens: TokensPerRun = None,
    usd: UsdPerRun = None,
    evaluator: EvaluatorName = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    config: SettingsFile = None,
    sets: Assignments = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the tasks and estimate; start nothing.")] = False,
) -> None:
    """Run a grid of task x method x switch x seed into one store. The same command goes on with what is missing."""
    from stark.bench.grid import read_grid, settings_maker

    if judge_only is not None and (method or switch or seeds or attempts):
        raise UsageError("--judge-only searches nothing.", "Leave --method, --switch, --seeds and --attempts out.")
    axes = {"subset": subset, "only": only, "methods": method, "switches": switch, "seeds": seeds}
    axes |= {"baselines": baselines, "both_scores": both_scores, "config": str(config) if config else None}
    grid = read_grid(grid_file, given(axes))
    options = {
        **limits(attempts, tokens, usd, None),
        **judging(precision, score, target, evaluator, allow_weak_sandbox),
        "roles": {"model": model, "base_url": base_url, "api_key_env": api_key_env},
    }
    settings_of = settings_maker(Path(grid.config) if grid.config else None, sets or [], given(options))
    chosen = _tasks(kernelbench, dataset, tasks, grid)
    cells = _cells(grid, chosen, judge_only, settings_of)
    if dry_run:
        _show_plan(cells, at_once, grid.both_scores)
    else:
        _run(cells, store, at_once, grid.both_scores)


def _tasks(kernelbench: Path | None, dataset: Path | None, files: Path | None, grid: GridFile) -> list[Task]:
    from stark.bench.task_sources import list_checkout, list_dataset, list_files, select

    places = {list_checkout: kernelbench, list_dataset: dataset, list_files: files}
    named = [(listed, path) for listed, path in places.items() if path is not None]
    if len(named) != 1:
        raise UsageError("A benchmark takes tasks from one place.", "Give --kernelbench, --dataset or --tasks.")
    ((listed, path),) = named
    _check_presence(path)
    return [listing.load() for listing in select(listed(path), grid.subset, grid.only)]


def _cells(grid: GridFile, tasks: list[Task], judge_only: Path | None, settings_of: SettingsOf) -> list[Cell]:
    from stark.bench.grid import judged_cells, make_grid, read_generations, with_baselines

    if judge_only is None:
        cells = make_grid(tasks, grid.methods, grid.switches, grid.seeds, settings_of)
    else:
        _check_presence(judge_only)
        system = judge_only.resolve().name
        cells = judged_cells(tasks, read_generations(judge_only), system, settings_of("stark", 0, ()))
        if not cells:
            raise UsageError(f"No kernel in {judge_only} is for a selected task.", "Check levels and numbers.")
    return with_baselines(cells, grid.both_scores or judge_only is not None) if grid.baselines else cells


def _check_presence(path: Path) -> None:
    if not path.exists():
        raise UsageError(f"There is no {path}.", "Check the path.")


def _show_plan(cells: list[Cell], at_once: int, both_scores: bool) -> None:
    from stark.bench.forecast import forecast
    from stark.cli.terminal import bench as view

    view.show_tasks(cells)
    view.show_forecast(forecast(cells, at_once, both_scores), at_once)


def _run(cells: list[Cell], folder: Path, at_once: int, both_scores: bool) -> None:
    from stark.bench.runner import run_grid
    from stark.cli.terminal import bench as view

    progress = view.GridProgress()
    try:
        work = run_grid(cells, folder, at_once, progress, both_scores, signals=True, noted=screen.say)
        done = asyncio.run(work)
    except asyncio.CancelledError:
        screen.say("Stopped at once; the same command goes on.")
        raise typer.Exit(INTERRUPTED) from None
    view.show_endings(progress, folder)
    if done.fault is not None:
        raise done.fault
    if done.stopped:
        raise typer.Exit(INTERRUPTED)
    if done.in_vain:
        raise TaskError(
            "Nothing could be searched or judged: the tasks do not work here, or test nothing.",
            f"stark report {folder} names them and says why.",
        )


COMMANDS = (bench,)
