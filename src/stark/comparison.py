"""Whether B is better than A: two stores, task by task, and how likely the difference is chance. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stark.errors import UsageError
from stark.inference import interval, permutation_p
from stark.results import RESCORED, RunResult

SIGNIFICANT = 0.05

Key = tuple[str, str]  # task, method


@dataclass(frozen=True)
class Pair:
    """One task in both stores: geometric mean over seeds of the speed-up over eager, a failed run counted as 1."""

    task: str
    method: str
    a: float
    b: float
    solved_a: bool
    solved_b: bool

    @property
    def ratio(self) -> float:
        return self.b / self.a


@dataclass(frozen=True)
class Comparison:
    """All pairs, and what they come to together. ``ratio`` is the geometric mean; above 1, B is faster. The methods of
    a task are no independent evidence, so ``p`` and the interval count tasks."""

    pairs: tuple[Pair, ...]
    tasks: int
    ratio: float
    low: float
    high: float
    p: float
    only_a: int
    only_b: int

    @property
    def verdict(self) -> str:
        """The significance statement."""
        sure = f"p = {self.p:.3f}, paired permutation test on the log-ratios of {self.tasks} tasks"
        if self.p >= SIGNIFICANT:
            return f"No significant difference ({sure})."
        better, share = ("B", self.ratio) if self.ratio > 1 else ("A", 1 / self.ratio)
        return f"{better} is significantly faster, {share:.2f}x ({sure})."


def compare(a: Sequence[RunResult], b: Sequence[RunResult]) -> Comparison:
    """Pair what both have by task and method; two stores of one method each are paired by task alone."""
    ours, theirs = _by_key(a), _by_key(b)
    if not ours.keys() & theirs.keys() and _one_method(ours) and _one_method(theirs):
        (name_a, name_b) = (next(iter(keys))[1] for keys in (ours, theirs))
        ours = {(task, f"{name_a} / {name_b}"): runs for (task, _), runs in ours.items()}
        theirs = {(task, f"{name_a} / {name_b}"): runs for (task, _), runs in theirs.items()}
    shared = [key for key in ours if key in theirs]
    if not shared:
        raise UsageError("The two stores have no complete run in common.", "Compare stores on the same tasks.")
    pairs = tuple(_pair(key, ours[key], theirs[key]) for key in sorted(shared))
    by_task: dict[str, list[float]] = {}
    for pair in pairs:
        by_task.setdefault(pair.task, []).append(math.log(pair.ratio))
    logs = [statistics.fmean(values) for values in by_task.values()]
    low, high = interval([[value] for value in logs])
    return Comparison(
        pairs=pairs,
        tasks=len(logs),
        ratio=math.exp(statistics.fmean(logs)),
        low=math.exp(low),
        high=math.exp(high),
        p=permutation_p(logs),
        only_a=sum(pair.solved_a and not pair.solved_b for pair in pairs),
        only_b=sum(pair.solved_b and not pair.solved_a for pair in pairs),
    )


def _by_key(results: Sequence[RunResult]) -> dict[Key, list[RunResult]]:
    """Complete runs by task and method. Winners that were only judged again are left out; where kernels of another
    tool have two scores, the score is part of the method."""
    counted = [run for run in results if run.complete and run.kind != RESCORED]
    several = len({run.score for run in counted}) > 1
    found: dict[Key, list[RunResult]] = {}
    for run in counted:
        method = f"{run.method}, {run.score}" if several else run.method
        found.setdefault((run.task, method), []).append(run)
    return found


def _one_method(found: Mapping[Key, object]) -> bool:
    return len({method for _, method in found}) == 1


def _pair(key: Key, a: Sequence[RunResult], b: Sequence[RunResult]) -> Pair:
    return Pair(*key, _speed(a), _speed(b), _solved(a), _solved(b))


def _speed(runs: Sequence[RunResult]) -> float:
    return statistics.geometric_mean([run.speedup() or 1.0 for run in runs])


def _solved(runs: Sequence[RunResult]) -> bool:
    return any(run.speedup() is not None for run in runs)
