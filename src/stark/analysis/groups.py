"""The runs of a store as the rows of tables: by level, score and method.

Only complete runs belong to a row. Rows leave degenerate tasks out; if there are any, a second set of rows has them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from stark.analysis.metrics import RunMetrics, clamp_speedup
from stark.analysis.results import RunResult
from stark.core.records import Kind
from stark_worker.protocol.baselines import BASELINES, EAGER

METHOD_ORDER = ("sampling", "reflexion", "search-agent", "ma-only", "stark", "informed")  # as in the paper's tables
BASELINE_LABELS = dict(zip(BASELINES, ("eager", "compile", "max-autotune"), strict=True))
ROW_COLUMNS = {"level": "text", "score": "text", "method": "text"}  # the columns that name a row
COUNT_COLUMNS = {"tasks": "count", "runs": "count"}

RunFigure = Callable[[RunResult], float | None]
TaskSeed = tuple[str, int]


@dataclass(frozen=True)
class Level:
    """The tasks of a row: a KernelBench level, or own tasks (None)."""

    number: int | None
    with_degenerate: bool = False

    def __str__(self) -> str:
        name = "own tasks" if self.number is None else str(self.number)
        return f"{name}, with degenerate" if self.with_degenerate else name

    @property
    def title(self) -> str:
        return str(self) if self.number is None else f"level {self}"

    @property
    def sort_key(self) -> tuple[bool, int, bool]:
        return self.number is None, self.number or 0, self.with_degenerate


@dataclass(frozen=True)
class Group:
    """The runs behind one row: a method on the tasks of a level, by one score."""

    level: Level
    score: str
    method: str
    runs: tuple[RunResult, ...]

    @property
    def labels(self) -> tuple[str, str, str]:
        """The values of ROW_COLUMNS."""
        return str(self.level), self.score, self.method

    @property
    def base_method(self) -> str:
        """The method without its switch."""
        return self.runs[0].base_method

    @property
    def metrics(self) -> list[RunMetrics]:
        return [run.metrics for run in self.runs if run.metrics is not None]

    @property
    def attempt_metrics(self) -> list[RunMetrics]:
        """Metrics without rescored winners, which made no attempts of their own."""
        return [run.metrics for run in self.runs if run.metrics is not None and run.kind != Kind.RESCORED]

    @property
    def is_searched(self) -> bool:
        """True if a method of STARK made the kernels, not another tool."""
        return all(run.kind != Kind.JUDGED for run in self.runs)

    @property
    def allowed_attempts(self) -> list[int]:
        """The distinct attempt budgets of the runs, without missing kernels."""
        return sorted({run.allowed_attempts for run in self.runs if not run.is_missing})

    @property
    def paper_key(self) -> tuple[int, str]:
        """Key of this row in the paper's tables; level 0 is in none of them."""
        return self.level.number or 0, self.method

    @property
    def counts(self) -> tuple[int, int]:
        """Number of tasks and of runs."""
        return len({run.task for run in self.runs}), len(self.runs)

    def speedups(self, baseline: str = EAGER) -> list[float | None]:
        return [run.speedup(baseline) for run in self.runs if baseline in run.baselines]

    @property
    def keys(self) -> set[TaskSeed]:
        return {(run.task, run.seed) for run in self.runs}

    def restrict_to(self, keys: set[TaskSeed]) -> Group:
        """The row with these runs only."""
        return replace(self, runs=tuple(run for run in self.runs if (run.task, run.seed) in keys))

    def by_task(self, figure: RunFigure) -> list[list[float]]:
        """A figure of each run, one list per task."""
        return self._collect(lambda run: run.task, figure)

    def by_seed(self, figure: RunFigure) -> list[list[float]]:
        """A figure of each run, one list per seed, on the tasks that every seed has."""
        keys = self.keys
        seeds = {seed for _, seed in keys}
        shared = {(task, seed) for task, seed in keys if all((task, each) in keys for each in seeds)}
        return self.restrict_to(shared)._collect(lambda run: run.seed, figure)

    def _collect(self, key: Callable[[RunResult], object], figure: RunFigure) -> list[list[float]]:
        found: dict[object, list[float]] = {}
        for run in self.runs:
            if (value := figure(run)) is not None:
                found.setdefault(key(run), []).append(value)
        return list(found.values())

    def best_so_far_curve(self) -> list[float]:
        """Geometric mean of the best speed-up after each attempt, at least 1. A run that ended early keeps its last."""
        runs = self.attempt_metrics
        longest = max((len(run.best_so_far_ms) for run in runs), default=0)
        return [statistics.geometric_mean([_best_speedup(run, number) for run in runs]) for number in range(longest)]


def group_runs(results: Sequence[RunResult]) -> list[Group]:
    """Group complete runs by level, score and method, in the order of tables."""
    complete = [run for run in results if run.complete]
    with_degenerate = {run.level for run in complete if run.degenerate}
    found: dict[tuple[Level, str, str], list[RunResult]] = {}
    for run in complete:
        if not run.degenerate:
            found.setdefault((Level(run.level), run.score, run.method), []).append(run)
        if run.level in with_degenerate:
            found.setdefault((Level(run.level, with_degenerate=True), run.score, run.method), []).append(run)
    return sorted((Group(*key, tuple(runs)) for key, runs in found.items()), key=_sort_key)


def rows_by_score(groups: Sequence[Group]) -> Iterator[tuple[Level, str, list[Group]]]:
    """Level, method and one row per score, for methods with runs by every score.

    A row is empty if all tasks of the level are degenerate by that score alone.
    """
    scores = list(dict.fromkeys(each.score for each in groups))
    found = {(each.level, each.score, each.method): each for each in groups}
    for level, method in dict.fromkeys((each.level, each.method) for each in groups):
        levels = (level, replace(level, with_degenerate=True))
        if all(any((each, score, method) in found for each in levels) for score in scores):
            yield level, method, [found.get((level, s, method), Group(level, s, method, ())) for s in scores]


def groups_with_attempts(groups: Sequence[Group]) -> list[Group]:
    """The groups whose runs made attempts."""
    return [each for each in groups if any(run.attempts for run in each.attempt_metrics)]


def _best_speedup(run: RunMetrics, number: int) -> float:
    best = run.best_so_far_ms[min(number, len(run.best_so_far_ms) - 1)] if run.best_so_far_ms else math.inf
    return clamp_speedup(run.root_ms / best)


def _sort_key(each: Group) -> tuple[str, tuple[bool, int, bool], int, str]:
    base = each.base_method
    order = METHOD_ORDER.index(base) if base in METHOD_ORDER else len(METHOD_ORDER)
    return each.score, each.level.sort_key, order, each.method
