"""What a run achieved: pure functions of judgements. The root never counts; rates count what agents made."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stark.core.records import Final
from stark.core.tree import ROOT_ID, Judgement, attempts_of
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import Timing


@dataclass(frozen=True)
class RunMetrics:
    """The figures of one run. Rates, ``root_ms`` and ``so_far_ms``, the best runtime after each attempt and infinity
    while there is none, are the search's. ``best_ms`` is the winner's time and ``beside_ms`` that of the reference it
    is compared with: of its final, where both were timed ``in_turns``, else of the search."""

    attempts: int
    compiled: int
    correct: int
    root_ms: float
    best_ms: float | None
    beside_ms: float
    so_far_ms: tuple[float, ...] = ()
    in_turns: bool = False

    @property
    def success(self) -> bool:
        """At least one compiled and correct kernel."""
        return self.best_ms is not None

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the reference the winner is; None where there is none."""
        return None if self.best_ms is None else self.beside_ms / self.best_ms


def measure(judgements: Sequence[Judgement], final: Final | None = None) -> RunMetrics:
    """The figures of a run with these nodes. The fastest of many noisy times is partly the luckiest, so the final has
    the last word on the winner: a kernel that does not hold there is none."""
    (root,) = (each for each in judgements if each.id == ROOT_ID)
    if root.runtime_ms is None:
        raise ValueError("a tree whose root did not run has no metrics")
    made = attempts_of(judgements)
    times = (math.inf if each.runtime_ms is None else each.runtime_ms for each in made)
    best_ms = _fastest(judgements) if final is None else _median(final.report.timing)
    beside_ms = _median(final.report.rival) if final else None
    return RunMetrics(
        attempts=len(made),
        compiled=sum(each.compiled for each in made),
        correct=sum(each.outcome is Outcome.OK for each in made),
        root_ms=root.runtime_ms,
        best_ms=best_ms,
        beside_ms=root.runtime_ms if beside_ms is None else beside_ms,
        so_far_ms=tuple(itertools.accumulate(times, min)),
        in_turns=beside_ms is not None,
    )


def success_rate(runs: Sequence[RunMetrics]) -> float:
    """Share of tasks with at least one correct kernel."""
    return _ratio(sum(run.success for run in runs), len(runs))


def compile_rate(runs: Sequence[RunMetrics]) -> float:
    """Share of all attempts that compiled."""
    return _ratio(sum(run.compiled for run in runs), sum(run.attempts for run in runs))


def correct_rate(runs: Sequence[RunMetrics], of_compiled: bool = False) -> float:
    """Share of all attempts, or of the compiled ones, that were correct."""
    total = sum(run.compiled if of_compiled else run.attempts for run in runs)
    return _ratio(sum(run.correct for run in runs), total)


def fast_p(speedups: Sequence[float | None], p: float = 1.0) -> float:
    """Share of tasks whose best kernel is at least p times as fast as the baseline. None stands for a failed task."""
    return _ratio(sum(speedup is not None and speedup >= p for speedup in speedups), len(speedups))


def kept(speedup: float | None) -> float:
    """What a user has in the end, over the baseline: whoever has no kernel, or a slower one, keeps the baseline."""
    return 1.0 if speedup is None else max(1.0, speedup)


@dataclass(frozen=True)
class Averages:
    """Of the speed-up over the tasks that have a kernel, None where none has; failed tasks are left out and counted.
    ``kept`` is the geometric mean over all tasks of what is ``kept`` in the end, which is at least 1."""

    mean: float | None
    geometric_mean: float | None
    median: float | None
    failed: int
    kept: float


def averages(speedups: Sequence[float | None]) -> Averages | None:
    """The averages, or None when there is no task."""
    if not speedups:
        return None
    solved = [speedup for speedup in speedups if speedup is not None]
    return Averages(
        mean=statistics.fmean(solved) if solved else None,
        geometric_mean=statistics.geometric_mean(solved) if solved else None,
        median=statistics.median(solved) if solved else None,
        failed=len(speedups) - len(solved),
        kept=statistics.geometric_mean(map(kept, speedups)),
    )


def _fastest(judgements: Iterable[Judgement]) -> float | None:
    return min((each.runtime_ms for each in judgements if each.id != ROOT_ID and each.runtime_ms), default=None)


def _median(timing: Timing | None) -> float | None:
    return timing.median_ms if timing else None


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
