"""What a run achieved: pure functions of stored nodes. The root never counts; rates count what agents made."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stark.tree import ROOT_ID, Node, Role
from stark_worker.protocol import Outcome

NOT_COMPILED = frozenset({Outcome.UNUSABLE_REPLY, Outcome.COMPILE_ERROR})
NO_ATTEMPT = frozenset({Role.REFERENCE, Role.GIVEN})


@dataclass(frozen=True)
class RunMetrics:
    """The figures of one run."""

    attempts: int
    compiled: int
    correct: int
    root_ms: float
    best_ms: float | None

    @property
    def success(self) -> bool:
        """At least one compiled and correct kernel."""
        return self.best_ms is not None

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the reference the best kernel is."""
        return self.root_ms / self.best_ms if self.best_ms else None


def attempts_of(nodes: Iterable[Node]) -> list[Node]:
    """The nodes that agents made."""
    return [node for node in nodes if node.role not in NO_ATTEMPT]


def measure(nodes: Sequence[Node]) -> RunMetrics:
    """The figures of a run with these nodes."""
    (root,) = (node for node in nodes if node.id == ROOT_ID)
    if root.runtime_ms is None:
        raise ValueError("a tree whose root did not run has no metrics")
    made = attempts_of(nodes)
    runtimes = [node.runtime_ms for node in nodes if node.id != ROOT_ID and node.runtime_ms is not None]
    return RunMetrics(
        attempts=len(made),
        compiled=sum(node.report.outcome not in NOT_COMPILED for node in made),
        correct=sum(not node.failed for node in made),
        root_ms=root.runtime_ms,
        best_ms=min(runtimes, default=None),
    )


def success_rate(runs: Sequence[RunMetrics]) -> float:
    """Share of tasks with at least one correct kernel."""
    return _share([run.success for run in runs])


def fast_p(runs: Sequence[RunMetrics], p: float = 1.0) -> float:
    """Share of tasks whose best kernel is at least p times as fast as the reference."""
    return _share([run.speedup is not None and run.speedup >= p for run in runs])


def compile_rate(runs: Sequence[RunMetrics]) -> float:
    """Share of all attempts that compiled."""
    return _ratio(sum(run.compiled for run in runs), sum(run.attempts for run in runs))


def correct_rate(runs: Sequence[RunMetrics], of_compiled: bool = False) -> float:
    """Share of all attempts, or of the compiled ones, that were correct."""
    total = sum(run.compiled if of_compiled else run.attempts for run in runs)
    return _ratio(sum(run.correct for run in runs), total)


@dataclass(frozen=True)
class Speed:
    """Averages of the speed-up over the tasks that have a kernel; a failed task is left out and counted beside it."""

    mean: float
    geometric_mean: float
    median: float
    failed: int


def speed(runs: Sequence[RunMetrics]) -> Speed | None:
    """The averages, or None when no task has a kernel."""
    speedups = [run.speedup for run in runs if run.speedup is not None]
    if not speedups:
        return None
    return Speed(
        mean=statistics.fmean(speedups),
        geometric_mean=statistics.geometric_mean(speedups),
        median=statistics.median(speedups),
        failed=len(runs) - len(speedups),
    )


def _share(flags: Sequence[bool]) -> float:
    return _ratio(sum(flags), len(flags))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
