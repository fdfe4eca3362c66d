"""The command ``stark bench``: many runs in one store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stark.cli.exit_codes import ExitCode
from stark.cli.options import (
    AllowWeakSandbox,
    ApiKeyEnv,
    Assignments,
    BaseUrl,
    DeviceKind,
    EvaluatorName,
    ModelName,
    Plain,
    PrecisionName,
    RayAddress,
    ScoreName,
    SettingsFile,
    TargetName,
    budget_options,
    drop_unset,
    evaluation_options,
    renamed_option,
)
from stark.cli.terminal import screen
from stark.cli.terminal.command import format_command
from stark.core.errors import TaskError, UsageError

if TYPE_CHECKING:
    from stark.bench.cell import Cell
    from stark.bench.grid import GridFile, SettingsFactory
    from stark.core.task import Task

KernelBenchFolder = Annotated[Path | None, typer.Option("--kernelbench", metavar="DIR", help="A KernelBench checkout.")]
Dataset = Annotated[Path | None, typer.Option("--dataset", metavar="DIR", help="A snapshot of KernelBench's data set.")]
TaskFiles = Annotated[Path | None, typer.Option("--tasks", metavar="PATH", help="A task file, or a folder of them.")]
GridPath = Annotated[
    Path | None,
    typer.Option("--grid", metavar="FILE", help="Grid file, such as configs/table-1.toml. Options override it."),
]
Subset = Annotated[str | None, typer.Option(help="representative, paper or all (default: the grid file's, else all).")]
Only = Annotated[
    list[str] | None, typer.Option("--only", help="level1, level1/26, level1/1-10 or '*Softmax*'; may be repeated.")
]
Methods = Annotated[
    list[str] | None, typer.Option("--method", help="May be repeated (default: the grid file's, else all five).")
]
Switches = Annotated[
    list[str] | None,
    typer.Option(
        "--switch",
        metavar="A.B=C,...",
        help="One more variant of each method, by settings of search, windows, anchors, prompts or roles; may be "
        "repeated.",
    ),
]
Seeds = Annotated[int | None, typer.Option(min=1, help="Number of seeds (default: the grid file's, else 1).")]
StoreFolder = Annotated[Path, typer.Option("--store", metavar="DIR", help="The store.")]
ParallelRuns = Annotated[int, typer.Option(min=1, help="Runs in parallel.")]
AtOnce = Annotated[str | None, renamed_option("--at-once", "--parallel-runs")]
Baselines = Annotated[bool | None, typer.Option(help="Also time torch.compile (default: the grid file's, else yes).")]
BothScores = Annotated[
    bool | None, typer.Option(help="Also judge each winner by the other score (default: the grid file's, else no).")
]
JudgeOnly = Annotated[
    Path | None,
    typer.Option(
        "--judge-only",
        metavar="DIR",
        help="Judge the kernels of another tool instead of searching. Their names are KernelBench's: "
        "level_1_problem_26_sample_0_kernel.py.",
    ),
]
AttemptsPerRun = Annotated[int | None, typer.Option("--attempts", help="Attempts per run (default: 30).")]
TokensPerRun = Annotated[int | None, typer.Option("--tokens", help="Limit on tokens per run.")]
UsdPerRun = Annotated[float | None, typer.Option("--usd", help="Limit on US dollars per run (default: 10).")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the tasks and estimate the cost; start nothing.")]


def bench(
    kernelbench: KernelBenchFolder = None,
    dataset: Dataset = None,
    tasks: TaskFiles = None,
    grid_file: GridPath = None,
    subset: Subset = None,
    only: Only = None,
    method: Methods = None,
    switch: Switches = None,
    seeds: Seeds = None,
    store: StoreFolder = Path("runs/bench"),
    parallel_runs: ParallelRuns = 16,
    at_once: AtOnce = None,
    baselines: Baselines = None,
    both_scores: BothScores = None,
    judge_only: JudgeOnly = None,
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
    ray_address: RayAddress = None,
    device_kind: DeviceKind = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    config: SettingsFile = None,
    sets: Assignments = None,
    plain: Plain = False,
    dry_run: DryRun = False,
) -> None:
    """Run a grid of task x method x switch x seed into one store. The same command continues with what is missing."""
    screen.show_title(f"STARK benchmark in {store}")
    from stark.bench.grid import read_grid, settings_factory

    if judge_only is not None and (method or switch or seeds or attempts):
        raise UsageError("--judge-only does not search.", "Leave out --method, --switch, --seeds and --attempts.")
    content = {"subset": subset, "only": only, "methods": method, "switches": switch, "seeds": seeds}
    content |= {"baselines": baselines, "both_scores": both_scores, "config": str(config) if config else None}
    grid = read_grid(grid_file, drop_unset(content))
    options = {
        **budget_options(attempts, tokens, usd, None),
        **evaluation_options(precision, score, target, evaluator, allow_weak_sandbox, ray_address, device_kind),
        "roles": {"model": model, "base_url": base_url, "api_key_env": api_key_env},
    }
    settings_of = settings_factory(Path(grid.config) if grid.config else None, sets or [], drop_unset(options))
    chosen = _load_tasks(kernelbench, dataset, tasks, grid)
    cells = _make_cells(grid, chosen, judge_only, settings_of)
    if dry_run:
        _show_forecast(cells, parallel_runs, grid.both_scores)
    else:
        _run(cells, store, parallel_runs, grid.both_scores, plain)


def _load_tasks(kernelbench: Path | None, dataset: Path | None, files: Path | None, grid: GridFile) -> list[Task]:
    from stark.bench.task_sources import list_checkout, list_dataset, list_files, select

    places = {list_checkout: kernelbench, list_dataset: dataset, list_files: files}
    named = [(list_tasks, path) for list_tasks, path in places.items() if path is not None]
    if len(named) != 1:
        raise UsageError("A benchmark takes its tasks from one place.", "Give --kernelbench, --dataset or --tasks.")
    ((list_tasks, path),) = named
    _check_presence(path)
    return [listing.load() for listing in select(list_tasks(path), grid.subset, grid.only)]


def _make_cells(grid: GridFile, tasks: list[Task], judge_only: Path | None, settings_of: SettingsFactory) -> list[Cell]:
    from stark.bench.grid import judged_cells, make_grid, read_generations, with_baselines

    if judge_only is None:
        cells = make_grid(tasks, grid.methods, grid.switches, grid.seeds, settings_of)
    else:
        _check_presence(judge_only)
        system = judge_only.resolve().name
        cells = judged_cells(tasks, read_generations(judge_only), system, settings_of("stark", 0, ()))
        if not cells:
            raise UsageError(
                f"No kernel in {judge_only} is for a selected task.", "Check levels and numbers in the file names."
            )
    return with_baselines(cells, grid.both_scores or judge_only is not None) if grid.baselines else cells


def _check_presence(path: Path) -> None:
    if not path.exists():
        raise UsageError(f"{path} does not exist.", "Check the path.")


def _show_forecast(cells: list[Cell], parallel_runs: int, both_scores: bool) -> None:
    from stark.bench.forecast import forecast
    from stark.cli.terminal import bench as view

    view.show_tasks(cells)
    view.show_forecast(forecast(cells, parallel_runs, both_scores), parallel_runs)


def _run(cells: list[Cell], folder: Path, parallel_runs: int, both_scores: bool, plain: bool) -> None:
    from stark.bench.runner import run_grid
    from stark.cli.live.view import View
    from stark.cli.terminal import bench as lines
    from stark.progress.draw_bench import draw_bench

    with View(lambda board, frame: draw_bench(board, str(folder), frame), plain=plain) as view:
        view.doing(f"Starting the evaluator for {len(cells)} runs")
        progress = lines.GridProgress(view.line)
        try:
            done = asyncio.run(
                run_grid(
                    cells,
                    folder,
                    parallel_runs,
                    progress,
                    both_scores,
                    signals=True,
                    on_note=view.note,
                    board=view.board,
                    listener=view,
                )
            )
        except asyncio.CancelledError:
            screen.show_line("Stopped at once. The same command continues.")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    lines.show_endings(progress, folder)
    if done.fault is not None:
        raise done.fault
    if done.stopped:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if done.no_usable_task:
        raise TaskError(
            "No task is usable: each of them fails here, or tests nothing.",
            f"To see why, type: {format_command('report', folder)}",
        )
