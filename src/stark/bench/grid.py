"""A benchmark's grid: task x method x switch x seed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from stark.bench.cell import Cell, GivenSource, evaluation_settings
from stark.core.errors import SettingsError, UsageError
from stark.core.records import Kind
from stark.core.settings import Group, Settings
from stark.core.task import Task
from stark.run.methods import METHODS, build_policy
from stark.run.settings_loader import load_settings, parse_assignment, read_file
from stark_worker.protocol.baselines import BASELINES, COMPILE_S, EAGER, baseline_source
from stark_worker.protocol.request import Score

FAIR_SWITCHES = ("search", "windows", "anchors", "prompts", "roles")
_GENERATED_FILE = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
SettingsFactory = Callable[[str, int, Sequence[str]], Settings]  # method, seed, assignments of the switch


class GridFile(Group):
    """A benchmark as a file, such as those in ``configs`` for the paper's tables. The command line overrides it."""

    config: str | None = None
    """Settings file of all runs, relative to this file."""
    subset: str = "all"
    """The tasks: `representative`, `paper` or `all`."""
    only: tuple[str, ...] = ()
    """A selection of those: `level1`, `level1/26`, `level1/1-10`, or a name with wildcards."""
    methods: tuple[str, ...] = Field(
        default=("stark", "sampling", "reflexion", "search-agent", "ma-only"), min_length=1
    )
    """The methods to compare."""
    switches: tuple[str, ...] = ()
    """More variants of each method, such as `anchors.mode=off`."""
    seeds: int = Field(default=1, ge=1)
    """Number of seeds, counted from 0."""
    baselines: bool = True
    """Also time torch.compile."""
    both_scores: bool = False
    """Also judge each winner by the other score."""


def read_grid(file: Path | None, options: Mapping[str, Any]) -> GridFile:
    """Read a grid file; options of the command line replace its values."""
    content = read_file(file) if file is not None else {}
    if "at_once" in content:
        raise SettingsError(f"{file} sets at_once, which is now the option --parallel-runs.", "Delete that line.")
    try:
        grid = GridFile.model_validate({**content, **options})
    except ValidationError as error:
        first = error.errors()[0]
        raise SettingsError(
            f"{'.'.join(map(str, first['loc']))} in {file or 'the command line'}: {first['msg'].lower()}.",
            f"A grid has {', '.join(GridFile.model_fields)}.",
        ) from error
    if file is None or grid.config is None or "config" in options:
        return grid
    return grid.model_copy(update={"config": str(file.parent / grid.config)})


def make_grid(
    tasks: Sequence[Task],
    methods: Sequence[str],
    switches: Sequence[str],
    seeds: int,
    settings_of: SettingsFactory,
) -> list[Cell]:
    """List every search, task by task, so that the first tasks are complete early.

    A method or switch that is named twice runs once.
    """
    _check_tasks(tasks)
    variants = [
        (switch, settings_of(method, seed, _assignments(switch)))
        for method in dict.fromkeys(methods)
        for switch in dict.fromkeys(("", *switches))
        for seed in range(seeds)
    ]
    return [Cell(task, settings, switch) for task in tasks for switch, settings in variants]


def settings_factory(file: Path | None, sets: Sequence[str], options: Mapping[str, Any]) -> SettingsFactory:
    """Return the function that makes the settings of a cell from those of the grid."""
    for axis, option in (("method", "--method"), ("seed", "--seeds")):
        if any(axis in parse_assignment(each) for each in sets):
            raise SettingsError(f"--set cannot fix {axis}: a benchmark varies it.", f"Choose its values with {option}.")

    def settings_of(method: str, seed: int, switch: Sequence[str]) -> Settings:
        settings = load_settings(file, sets, {**options, "method": method, "seed": seed}, switch)
        build_policy(settings)  # refuse an unknown policy before anything is stored
        if settings.budget.wall_s is not None:
            raise SettingsError(
                "A benchmark has no limit on time: its runs wait for each other, so the limit would not be fair.",
                "Limit attempts, tokens or money instead: --attempts, --tokens or --usd.",
            )
        return settings

    return settings_of


def with_baselines(cells: Sequence[Cell], both_scores: bool) -> list[Cell]:
    """Add the baselines of each task after its searches; they need no model and keep the lanes busy."""
    tasks = {cell.task.name: cell for cell in cells}
    scores = list(Score) if both_scores else [cells[0].settings.evaluation.score]
    return [
        member
        for name, last in tasks.items()
        for member in (
            *(cell for cell in cells if cell.task.name == name),
            *(_baselines(last, score) for score in scores),
        )
    ]


def _baselines(cell: Cell, score: Score) -> Cell:
    """Return the cell that times torch.compile; eager is the root of any run."""
    longer = evaluation_settings(cell.settings, score=score, run_s=max(cell.settings.evaluation.run_s, COMPILE_S))
    given = tuple(
        GivenSource(number, name, *baseline_source(cell.task.source, name))
        for number, name in enumerate(BASELINES)
        if name != EAGER
    )
    return Cell(cell.task, Settings(evaluation=longer.evaluation), kind=Kind.BASELINES, given=given)


def judged_cells(
    tasks: Sequence[Task], generations: Mapping[tuple[int, int], Sequence[GivenSource]], system: str, settings: Settings
) -> list[Cell]:
    """List the cells that judge another tool's kernels, one per task and score.

    A task without a kernel gets a cell with nothing given: KernelBench counts it as a failure.
    """
    _check_tasks(tasks)
    if system in METHODS:
        raise UsageError(
            f"The folder {system} has the name of one of STARK's methods: its kernels would count as STARK's.",
            "Rename the folder.",
        )
    if not any((task.level, task.number) in generations for task in tasks):
        return []
    return [
        Cell(
            task,
            evaluation_settings(Settings(evaluation=settings.evaluation), score=score),
            "",
            Kind.JUDGED,
            given,
            system,
        )
        for task in tasks
        if task.level is not None and task.number is not None
        for given in [tuple(generations.get((task.level, task.number), ()))]
        for score in Score
    ]


def read_generations(folder: Path) -> dict[tuple[int, int], list[GivenSource]]:
    """Read kernels that KernelBench's generator wrote, by level and problem."""
    files: dict[tuple[int, int, int], Path] = {}
    for path in sorted(folder.glob("*.py")):
        if name := _GENERATED_FILE.fullmatch(path.name):
            level, problem, sample = map(int, name.groups())
            if same := files.get((level, problem, sample)):
                raise UsageError(f"{same.name} and {path.name} are the same sample.", "Keep one of them.")
            files[level, problem, sample] = path
    found: dict[tuple[int, int], list[GivenSource]] = {}
    for (level, problem, sample), path in sorted(files.items()):
        given = GivenSource(1 + sample, f"sample {sample}", path.read_text(encoding="utf-8", errors="replace"))
        found.setdefault((level, problem), []).append(given)
    if not found:
        raise UsageError(
            f"{folder} holds no generated kernel.", "Name the files as in level_1_problem_26_sample_0_kernel.py."
        )
    return found


def _check_tasks(tasks: Sequence[Task]) -> None:
    """Refuse two tasks with one name, or with one number of a level."""
    found: dict[object, Task] = {}
    for task in tasks:
        places = [task.name, *([(task.level, task.number)] if task.number is not None else [])]
        for other in filter(None, map(found.get, places)):
            where = task.name if task.number is None else f"number {task.number} of level {task.level}"
            raise UsageError(
                f"Two tasks are {where}: {other.name} and {task.name}.",
                "Take one of them out, or choose one with --only and its name.",
            )
        found |= dict.fromkeys(places, task)


def _assignments(switch: str) -> list[str]:
    """Split a switch into its assignments: ``anchors.mode=off,windows.leaders=0``."""
    assignments = [part.strip() for part in switch.split(",") if part.strip()]
    if switch and not assignments:  # it would run the plain method again under another name
        raise SettingsError(f"The switch {switch!r} changes nothing.", "A switch is written as anchors.mode=off.")
    for assignment in assignments:
        (group,) = parse_assignment(assignment)
        if group not in FAIR_SWITCHES:
            raise SettingsError(
                f"A switch may not change {group}: all runs of a benchmark have the same budget and evaluator.",
                f"A switch changes {', '.join(FAIR_SWITCHES)}; set anything else for all runs with --set.",
            )
    return assignments
