"""The figures of a run, as pure functions of its judgements. The root never counts."""

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
    """The figures of one run.

    Counts, ``root_ms`` and ``best_so_far_ms`` (infinity before the first kernel) come from the search. ``best_ms`` and
    ``paired_root_ms`` are the times of the winner and of the reference it is compared with. They come from the
    confirmation, where both were ``timed_in_turns``, or from the search if there was none.
    """

    attempts: int
    compiled: int
    correct: int
    root_ms: float
    best_ms: float | None
    paired_root_ms: float
    best_so_far_ms: tuple[float, ...] = ()
    timed_in_turns: bool = False

    @property
    def success(self) -> bool:
        """True if there is at least one correct kernel."""
        return self.best_ms is not None

    @property
    def speedup(self) -> float | None:
        """Speed of the winner over the reference; None without a winner."""
        return None if self.best_ms is None else self.paired_root_ms / self.best_ms


def compute_metrics(judgements: Sequence[Judgement], final: Final | None = None) -> RunMetrics:
    """Compute the figures of a run with these nodes.

    The confirmation decides about the winner, because the fastest of many noisy times is partly luck. A kernel that
    fails there does not count.
    """
    (root,) = (each for each in judgements if each.id == ROOT_ID)
    if root.runtime_ms is None:
        raise ValueError("a tree whose root did not run has no metrics")
    made = attempts_of(judgements)
    times = (math.inf if each.runtime_ms is None else each.runtime_ms for each in made)
    best_ms = _fastest(judgements) if final is None else _median(final.report.timing)
    paired_root_ms = _median(final.report.opponent) if final else None
    return RunMetrics(
        attempts=len(made),
        compiled=sum(each.compiled for each in made),
        correct=sum(each.outcome is Outcome.OK for each in made),
        root_ms=root.runtime_ms,
        best_ms=best_ms,
        paired_root_ms=root.runtime_ms if paired_root_ms is None else paired_root_ms,
        best_so_far_ms=tuple(itertools.accumulate(times, min)),
        timed_in_turns=paired_root_ms is not None,
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
    """Share of tasks whose best kernel is at least p times as fast as the baseline. None is a failed task."""
    return _ratio(sum(speedup is not None and speedup >= p for speedup in speedups), len(speedups))


def clamp_speedup(speedup: float | None) -> float:
    """max(1, speedup): no kernel or a slower one counts as 1, because the user keeps the baseline."""
    return 1.0 if speedup is None else max(1.0, speedup)


@dataclass(frozen=True)
class Averages:
    """Averages of the speed-up over the tasks with a kernel; None if no task has one.

    ``failed`` counts the other tasks. ``clamped`` is the geometric mean of ``clamp_speedup`` over all tasks.
    """

    mean: float | None
    geometric_mean: float | None
    median: float | None
    failed: int
    clamped: float


def compute_averages(speedups: Sequence[float | None]) -> Averages | None:
    """Compute the averages; None if there is no task."""
    if not speedups:
        return None
    solved = [speedup for speedup in speedups if speedup is not None]
    return Averages(
        mean=statistics.fmean(solved) if solved else None,
        geometric_mean=statistics.geometric_mean(solved) if solved else None,
        median=statistics.median(solved) if solved else None,
        failed=len(speedups) - len(solved),
        clamped=statistics.geometric_mean(map(clamp_speedup, speedups)),
    )


def _fastest(judgements: Iterable[Judgement]) -> float | None:
    return min((each.runtime_ms for each in judgements if each.id != ROOT_ID and each.runtime_ms), default=None)


def _median(timing: Timing | None) -> float | None:
    return timing.median_ms if timing else None


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
