"""Compares two stores task by task and tests if the difference is significant. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stark.analysis.metrics import clamp_speedup
from stark.analysis.results import RunResult
from stark.analysis.statistics import MIN_PAIRS, SIGNIFICANCE_LEVEL, count_differing, permutation_test, sign_test
from stark.core.errors import UsageError
from stark.core.records import Kind

Key = tuple[str, str, str]  # task, method, score
Runs = dict[Key, list[RunResult]]
Sides = tuple[list[RunResult], list[RunResult]]  # the runs of a pair in either store

TEST_NAME = "paired permutation test on the log-ratios"
SCORES_DIFFER = "A was judged by {}, B by {}: the difference may come from the rules and clocks."
DEVICES_DIFFER = "A was measured on {}, B on {}: the difference may come from the machine."
BUDGETS_DIFFER = "A chose its best of {} attempts, B of {}: the difference may come from the budget."
SELECTION_DIFFERS = "A's kernels were chosen by {}, B's by {}: the difference may come from the selection."
SEED_COUNTS_DIFFER = "A has {} runs of a task and method, B {}: more runs solve more tasks."


@dataclass(frozen=True)
class Pair:
    """One task in both stores. ``a`` and ``b`` are geometric means over seeds of the speed-up over eager.

    A run without a kernel, or with a slower one, counts as 1. A task is solved if a run of any seed solved it.
    """

    task: str
    method: str
    score: str
    a: float
    b: float
    solved_a: bool
    solved_b: bool

    @property
    def ratio(self) -> float:
        return self.b / self.a


@dataclass(frozen=True)
class LeftOut:
    """A task and method that is not compared, with the reason."""

    task: str
    method: str
    score: str
    why: str


@dataclass(frozen=True)
class Overall:
    """All tasks of one method and score together. ``ratio`` is the geometric mean; above 1, B is faster.

    ``interval`` comes from the same test as ``p``: 1 lies outside exactly if ``p`` is significant. ``differing`` counts
    the tasks with different speeds, ``only_a`` and ``only_b`` those that only one side solved.
    """

    method: str
    score: str
    tasks: int
    differing: int
    ratio: float
    interval: tuple[float, float] | None
    p: float
    only_a: int
    only_b: int

    @property
    def p_solved(self) -> float:
        return sign_test(self.only_a, self.only_b)

    @property
    def verdict(self) -> str:
        """Two sentences: one on speed, one on tasks solved. A store can be faster and still solve fewer."""
        return f"{self._speed_verdict} {self._solved_verdict}"

    @property
    def _speed_verdict(self) -> str:
        if not self.differing:
            return f"Neither is faster on any task ({self.tasks} compared)."
        if self.differing < MIN_PAIRS:
            return (
                f"Too few tasks to compare speed: speeds differ on {self.differing} of {self.tasks}. A {TEST_NAME}"
                f" needs {MIN_PAIRS} or more to give p < {SIGNIFICANCE_LEVEL}."
            )
        evidence = f"{format_p(self.p)}, {TEST_NAME} of {self.tasks} tasks"
        if self.p >= SIGNIFICANCE_LEVEL:
            return f"No significant difference in speed ({evidence})."
        better, share = ("B", self.ratio) if self.ratio > 1 else ("A", 1 / self.ratio)
        return f"{better} is significantly faster, {share:.2f}x ({evidence})."

    @property
    def _solved_verdict(self) -> str:
        if not self.only_a + self.only_b:
            return f"No task was solved by one side alone ({self.tasks} compared)."
        counts = (
            f"of {self.tasks}, A alone solved {self.only_a} and B alone {self.only_b}"
            f" ({format_p(self.p_solved)}, exact sign test)"
        )
        if self.p_solved >= SIGNIFICANCE_LEVEL:
            return f"No significant difference in tasks solved: {counts}."
        return f"{'A' if self.only_a > self.only_b else 'B'} solved significantly more tasks: {counts}."


@dataclass(frozen=True)
class Comparison:
    """All pairs, and a summary for each method and score.

    Nothing is averaged over methods or scores: a change may help one method and harm another. ``warnings`` name other
    differences between the stores.
    """

    pairs: tuple[Pair, ...]
    overall: tuple[Overall, ...]
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]


def compare(a: Sequence[RunResult], b: Sequence[RunResult], any_score: bool = False) -> Comparison:
    """Pair runs by task, method and score; two stores of one method each are paired by task and score.

    Leave out tasks that are degenerate in either store. Pair different scores only with ``any_score``.
    """
    runs_a, runs_b = _match_methods(*_match_scores(list(a), list(b), any_score))
    tested_a, tested_b = _group_complete_runs(runs_a), _group_complete_runs(runs_b)
    degenerate = _degenerate_tasks([*runs_a, *runs_b])
    shared = sorted(key for key in tested_a.keys() & tested_b.keys() if (key[0], key[2]) not in degenerate)
    if not shared:
        raise _nothing_shared_error(tested_a, tested_b)
    pairs = tuple(_make_pair(key, tested_a[key], tested_b[key]) for key in shared)
    paired = [(tested_a[key], tested_b[key]) for key in shared]
    return Comparison(
        pairs=pairs,
        overall=tuple(_summarise(*row, pairs) for row in sorted({(pair.method, pair.score) for pair in pairs})),
        left_out=_find_left_out(runs_a, runs_b, shared, degenerate),
        warnings=_find_warnings(a, b, paired),
    )


def _nothing_shared_error(a: Runs, b: Runs) -> UsageError:
    by_a, by_b = ({method for _, method, _ in runs} for runs in (a, b))
    if by_a and by_b and not by_a & by_b:
        return UsageError(
            f"Cannot match the runs: A has complete runs of {_join_names(by_a)}, B of {_join_names(by_b)}.",
            "Compare stores with a method or tool in common, or with one each.",
        )
    return UsageError(
        "The two stores have no complete run in common on a task that is not degenerate.",
        "Compare stores on the same tasks; stark report lists degenerate tasks and unfinished runs.",
    )


def _summarise(method: str, score: str, pairs: Sequence[Pair]) -> Overall:
    chosen = [pair for pair in pairs if (pair.method, pair.score) == (method, score)]
    logs = [math.log(pair.ratio) for pair in chosen]
    p, bounds = permutation_test(logs)
    return Overall(
        method=method,
        score=score,
        tasks=len(logs),
        differing=count_differing(logs),
        ratio=math.exp(statistics.fmean(logs)),
        interval=bounds and (math.exp(bounds[0]), math.exp(bounds[1])),
        p=p,
        only_a=sum(pair.solved_a and not pair.solved_b for pair in chosen),
        only_b=sum(pair.solved_b and not pair.solved_a for pair in chosen),
    )


def format_p(p: float) -> str:
    """Format a p-value; rounding never turns a significant one into one that is not."""
    if p < 0.001:
        return "p < 0.001"
    rounded = float(f"{p:.3g}")
    return f"p < {SIGNIFICANCE_LEVEL}" if p < SIGNIFICANCE_LEVEL <= rounded else f"p = {rounded:g}"


def _find_warnings(a: Sequence[RunResult], b: Sequence[RunResult], paired: Sequence[Sides]) -> tuple[str, ...]:
    """List other differences that could explain the result."""
    found = (
        "" if _scores(a) & _scores(b) else SCORES_DIFFER.format(*map(_join_names, map(_driving_scores, (a, b)))),
        _warn_if_different(paired, lambda runs: {_selected_by(run) for run in runs}, SELECTION_DIFFERS),
        _warn_if_different(paired, lambda runs: {run.device for run in runs}, DEVICES_DIFFER),
        _warn_if_different(paired, lambda runs: {str(run.allowed_attempts) for run in runs}, BUDGETS_DIFFER),
        _warn_if_different(paired, lambda runs: {str(len(runs))}, SEED_COUNTS_DIFFER),
    )
    return tuple(filter(None, found))


def _selected_by(run: RunResult) -> str:
    """Name the score that chose the kernel."""
    return "another score" if run.kind == Kind.RESCORED else "the score compared"


def _scores(runs: Sequence[RunResult]) -> set[str]:
    return {run.score for run in runs}


def _join_names(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))  # a score may have a comma


def _match_scores(a: list[RunResult], b: list[RunResult], any_score: bool) -> tuple[list[RunResult], list[RunResult]]:
    """Return the runs with scores that can be paired, or refuse."""
    if _scores(a) & _scores(b):
        return a, b
    drove_a, drove_b = _driving_scores(a), _driving_scores(b)
    one, other = _join_names(drove_a), _join_names(drove_b)
    if not any_score:
        raise UsageError(
            f"A was judged by {one} and B by {other}: these are different rules and clocks.",
            "Compare stores of the same score, or give --any-score.",
        )
    if len(drove_a) + len(drove_b) > 2:
        raise UsageError(f"Cannot match the scores: A has {one}, B has {other}.", "Compare stores of one score each.")
    return _rename_score(a, one, f"{one} / {other}"), _rename_score(b, other, f"{one} / {other}")


def _driving_scores(runs: Sequence[RunResult]) -> set[str]:
    """The scores that chose kernels, without those that only judged winners again."""
    return _scores([run for run in runs if run.kind != Kind.RESCORED])


def _match_methods(a: list[RunResult], b: list[RunResult]) -> tuple[list[RunResult], list[RunResult]]:
    """Give both methods one name if each store has a single, different one."""
    by_a, by_b = ({run.method for run in runs if run.complete} for runs in (a, b))
    if by_a & by_b or len(by_a) != 1 or len(by_b) != 1:
        return a, b
    (one,), (other,) = by_a, by_b
    both = f"{one} / {other}"
    return _rename_method(a, one, both), _rename_method(b, other, both)


def _rename_method(runs: list[RunResult], method: str, name: str) -> list[RunResult]:
    return [replace(run, method=name) if run.method == method else run for run in runs]


def _rename_score(runs: list[RunResult], score: str, name: str) -> list[RunResult]:
    return [replace(run, score=name) if run.score == score else run for run in runs]


def _group_complete_runs(runs: Sequence[RunResult]) -> Runs:
    """Complete runs by task, method and score."""
    found: Runs = {}
    for run in runs:
        if run.complete:
            found.setdefault(_pair_key(run), []).append(run)
    return found


def _pair_key(run: RunResult) -> Key:
    return run.task, run.method, run.score


def _degenerate_tasks(runs: Sequence[RunResult]) -> dict[tuple[str, str], str]:
    return {(run.task, run.score): run.degenerate for run in runs if run.degenerate}


def _find_left_out(
    a: Sequence[RunResult], b: Sequence[RunResult], shared: Sequence[Key], degenerate: Mapping[tuple[str, str], str]
) -> tuple[LeftOut, ...]:
    """Everything of both stores that is in no pair."""
    complete_a, complete_b = (_completeness(runs) for runs in (a, b))
    rest = sorted((complete_a.keys() | complete_b.keys()) - set(shared))
    reasons = (
        f"degenerate: {degenerate[key[0], key[2]]}"
        if (key[0], key[2]) in degenerate
        else f"A: {_format_state(complete_a.get(key))}, B: {_format_state(complete_b.get(key))}"
        for key in rest
    )
    return tuple(LeftOut(*key, reason) for key, reason in zip(rest, reasons, strict=True))


def _completeness(runs: Sequence[RunResult]) -> dict[Key, bool]:
    """True for every key with a complete run."""
    return {_pair_key(run): run.complete for run in sorted(runs, key=lambda run: run.complete)}


def _format_state(complete: bool | None) -> str:
    return {None: "none", False: "not complete", True: "complete"}[complete]


def _warn_if_different(paired: Sequence[Sides], facts: Callable[[Sequence[RunResult]], set[str]], warning: str) -> str:
    """Return the warning with the facts of either side, or nothing if all pairs agree."""
    found = [(facts(one), facts(other)) for one, other in paired]
    if all(one == other for one, other in found):
        return ""
    return warning.format(*(_join_names(set().union(*side)) for side in zip(*found, strict=True)))


def _make_pair(key: Key, a: Sequence[RunResult], b: Sequence[RunResult]) -> Pair:
    return Pair(*key, _mean_speedup(a), _mean_speedup(b), _is_solved(a), _is_solved(b))


def _mean_speedup(runs: Sequence[RunResult]) -> float:
    return statistics.geometric_mean([clamp_speedup(run.speedup()) for run in runs])


def _is_solved(runs: Sequence[RunResult]) -> bool:
    return any(run.speedup() is not None for run in runs)
