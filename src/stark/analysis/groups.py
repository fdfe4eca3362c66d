"""The runs of a store as the rows of a table: by level, score and method.

Runs that did not use their budget up (faults, stops) belong to no row. Degenerate tasks are left out of a level's
rows; where there are some, a second set of rows has them in.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from stark.analysis.metrics import RunMetrics, kept
from stark.analysis.results import RunResult
from stark.core.records import Kind
from stark_worker.protocol.baselines import BASELINES, EAGER

ORDER = ("sampling", "reflexion", "search-agent", "ma-only", "stark")  # as in the paper's tables
SHORT = dict(zip(BASELINES, ("eager", "compile", "max-autotune"), strict=True))
WITH_DEGENERATE = ", with degenerate"
WHERE = {"level": "text", "score": "text", "method": "text"}  # the columns that name a row
COUNTS = {"tasks": "count", "runs": "count"}  # and what its figures go over

Figure = Callable[[RunResult], float | None]
Key = tuple[str, int]  # task, seed


@dataclass(frozen=True)
class Group:
    """The runs behind one row: a method on the tasks of a level, by one score."""

    level: str
    score: str
    method: str
    runs: tuple[RunResult, ...]

    @property
    def where(self) -> tuple[str, str, str]:
        return self.level, self.score, self.method

    @property
    def base(self) -> str:
        """The method without its switch."""
        return base_of(self.method)

    @property
    def metrics(self) -> list[RunMetrics]:
        return [run.metrics for run in self.runs if run.metrics is not None]

    @property
    def attempting(self) -> list[RunMetrics]:
        """Without winners that were only judged again: those made no attempts and were to make none."""
        return [run.metrics for run in self.runs if run.metrics is not None and run.kind != Kind.RESCORED]

    @property
    def searched(self) -> bool:
        """Whether a method made its kernels, not another tool."""
        return all(run.kind != Kind.JUDGED for run in self.runs)

    @property
    def allowed(self) -> list[int]:
        """The attempts a run of this row had, every number once. A kernel that is missing says nothing about them."""
        return sorted({run.allowed for run in self.runs if not run.missing})

    @property
    def published_as(self) -> tuple[int, str] | None:
        """The paper's name for this row."""
        plain = self.level.removesuffix(WITH_DEGENERATE)
        return (int(plain), self.method) if plain.isdigit() else None

    @property
    def counts(self) -> tuple[int, int]:
        """How many tasks and runs its figures go over."""
        return len({run.task for run in self.runs}), len(self.runs)

    def speedups(self, baseline: str = EAGER) -> list[float | None]:
        return [run.speedup(baseline) for run in self.runs if baseline in run.baselines]

    @property
    def keys(self) -> set[Key]:
        """What names a run beside its row."""
        return {(run.task, run.seed) for run in self.runs}

    def on(self, keys: set[Key]) -> Group:
        """The row without other runs than these."""
        return replace(self, runs=tuple(run for run in self.runs if (run.task, run.seed) in keys))

    def by_task(self, figure: Figure) -> list[list[float]]:
        """A figure of each run, the seeds of a task together."""
        return self._by(lambda run: run.task, figure)

    def by_seed(self, figure: Figure) -> list[list[float]]:
        """A figure of each run, the tasks of a seed together, without tasks that some seed lacks: those are no
        difference between seeds."""
        keys = self.keys
        seeds = {seed for _, seed in keys}
        shared = {(task, seed) for task, seed in keys if all((task, each) in keys for each in seeds)}
        return self.on(shared)._by(lambda run: run.seed, figure)

    def _by(self, key: Callable[[RunResult], object], figure: Figure) -> list[list[float]]:
        found: dict[object, list[float]] = {}
        for run in self.runs:
            if (value := figure(run)) is not None:
                found.setdefault(key(run), []).append(value)
        return list(found.values())

    def curve(self) -> list[float]:
        """The geometric mean of the best speed-up after each attempt, 1 while a run has no kernel or only slower ones.
        A run that ended early keeps what it had, be it nothing."""
        runs = self.attempting
        longest = max((len(run.so_far_ms) for run in runs), default=0)
        return [statistics.geometric_mean([_so_far(run, number) for run in runs]) for number in range(longest)]


def group(results: Sequence[RunResult]) -> list[Group]:
    """Complete runs by level, score and method, in the order in which tables show them."""
    complete = [run for run in results if run.complete]
    doubtful = {run.level for run in complete if run.degenerate}
    found: dict[tuple[str, str, str], list[RunResult]] = {}
    for run in complete:
        level = "own" if run.level is None else str(run.level)
        if not run.degenerate:
            found.setdefault((level, run.score, run.method), []).append(run)
        if run.level in doubtful:
            found.setdefault((level + WITH_DEGENERATE, run.score, run.method), []).append(run)
    return [Group(*where, tuple(runs)) for where, runs in sorted(found.items(), key=lambda item: _place(item[0]))]


def by_score(groups: Sequence[Group]) -> Iterator[tuple[str, str, list[Group]]]:
    """Level, method and their row by every score, where the method has runs by every score. A row is empty where all
    tasks of the level are degenerate by that score alone: its runs are in the rows with degenerate ones."""
    scores = list(dict.fromkeys(each.score for each in groups))
    found = {each.where: each for each in groups}
    for level, method in dict.fromkeys((each.level, each.method) for each in groups):
        names = (level, level + WITH_DEGENERATE)
        if all(any((name, score, method) in found for name in names) for score in scores):
            yield level, method, [found.get((level, s, method), Group(level, s, method, ())) for s in scores]


def with_attempts(groups: Sequence[Group]) -> list[Group]:
    """Groups of runs that made attempts."""
    return [each for each in groups if any(run.attempts for run in each.attempting)]


def _so_far(run: RunMetrics, number: int) -> float:
    best = run.so_far_ms[min(number, len(run.so_far_ms) - 1)] if run.so_far_ms else math.inf
    return kept(run.root_ms / best)


def _place(where: tuple[str, str, str]) -> tuple[str, str, int, str]:
    level, score, method = where
    base = base_of(method)
    return score, level, ORDER.index(base) if base in ORDER else len(ORDER), method


def base_of(method: str) -> str:
    """A method without its switch."""
    return method.partition(" (")[0]
