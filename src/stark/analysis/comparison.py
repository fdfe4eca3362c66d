"""Whether B is better than A: two stores, task by task, and how likely the difference is chance. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stark.analysis.metrics import kept
from stark.analysis.results import RunResult
from stark.analysis.statistics import ENOUGH, SIGNIFICANT, differing, permutation_test, sign_p
from stark.core.errors import UsageError
from stark.core.records import Kind

Key = tuple[str, str, str]  # task, method, score
Runs = dict[Key, list[RunResult]]
Sides = tuple[list[RunResult], list[RunResult]]  # the runs of a pair in either store

TEST = "paired permutation test on the log-ratios"
RULES = "A was judged by {}, B by {}: the difference may be that of the rules and clocks."
DEVICES = "A was measured on {}, B on {}: the difference may be the machine's."
BUDGETS = "A chose its best of {} attempts, B of {}: the difference may be the budget's."
CHOSEN = "A's kernels were chosen by {}, B's by {}: the difference may be that of what was aimed at."
SEEDS = "A has {} runs of a task and method, B {}: more runs solve more tasks."


@dataclass(frozen=True)
class Pair:
    """One task in both stores: geometric mean over seeds of the speed-up over eager that a user has in the end, so a
    run that failed or has only a slower kernel counts as 1. Solved: by a run of any seed."""

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
    """A task and method that is not compared, and why."""

    task: str
    method: str
    score: str
    why: str


@dataclass(frozen=True)
class Overall:
    """What the tasks of one method and score come to together. ``ratio`` is the geometric mean; above 1, B is faster.
    Its interval, where there is one, is that of the test, so that 1 lies outside exactly where ``p`` is significant.
    ``differing`` are the tasks whose speeds differ at all, ``only_a`` and ``only_b`` those that one side alone has
    solved."""

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
        return sign_p(self.only_a, self.only_b)

    @property
    def verdict(self) -> str:
        """Who is faster, and who solved more: a store can be faster where it has kernels and still have fewer."""
        return f"{self._faster} {self._solved}"

    @property
    def _faster(self) -> str:
        if not self.differing:
            return f"Neither is faster on any task ({self.tasks} compared)."
        if self.differing < ENOUGH:
            return (
                f"Too few tasks to tell who is faster: speeds differ on {self.differing} of {self.tasks}, and whatever"
                f" came of so few, a {TEST} could not give p < {SIGNIFICANT}; it takes {ENOUGH} or more."
            )
        sure = f"{_told(self.p)}, {TEST} of {self.tasks} tasks"
        if self.p >= SIGNIFICANT:
            return f"No significant difference in speed ({sure})."
        better, share = ("B", self.ratio) if self.ratio > 1 else ("A", 1 / self.ratio)
        return f"{better} is significantly faster, {share:.2f}x ({sure})."

    @property
    def _solved(self) -> str:
        if not self.only_a + self.only_b:
            return f"No task was solved by one side alone ({self.tasks} compared)."
        counts = (
            f"of {self.tasks}, A alone solved {self.only_a} and B alone {self.only_b}"
            f" ({_told(self.p_solved)}, exact sign test)"
        )
        if self.p_solved >= SIGNIFICANT:
            return f"No significant difference in tasks solved: {counts}."
        return f"{'A' if self.only_a > self.only_b else 'B'} solved significantly more tasks: {counts}."


@dataclass(frozen=True)
class Comparison:
    """All pairs, and what they come to for each method and score. Nothing is averaged over those: a change may help
    one method and harm another, and scores are different rules and clocks. ``warnings`` say what else than the change
    under test differs between the two."""

    pairs: tuple[Pair, ...]
    overall: tuple[Overall, ...]
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]


def compare(a: Sequence[RunResult], b: Sequence[RunResult], any_score: bool = False) -> Comparison:
    """Pair what both have by task, method and score; two stores of one method each are paired by task and score.

    A task that tests nothing for one of them is left out, as in the rows of a report. Speeds by different scores are
    paired only where ``any_score`` asks for it.
    """
    ours, theirs = _alike(*_one_score(list(a), list(b), any_score))
    tested_a, tested_b = _counted(ours), _counted(theirs)
    degenerate = _degenerate([*ours, *theirs])
    shared = sorted(key for key in tested_a.keys() & tested_b.keys() if (key[0], key[2]) not in degenerate)
    if not shared:
        raise _nothing_shared(tested_a, tested_b)
    pairs = tuple(_pair(key, tested_a[key], tested_b[key]) for key in shared)
    paired = [(tested_a[key], tested_b[key]) for key in shared]
    return Comparison(
        pairs=pairs,
        overall=tuple(_overall(*row, pairs) for row in sorted({(pair.method, pair.score) for pair in pairs})),
        left_out=_left_out(ours, theirs, shared, degenerate),
        warnings=_warnings(a, b, paired),
    )


def _nothing_shared(a: Runs, b: Runs) -> UsageError:
    by_a, by_b = ({method for _, method, _ in runs} for runs in (a, b))
    if by_a and by_b and not by_a & by_b:
        return UsageError(
            f"A has complete runs of {_listed(by_a)}, B of {_listed(by_b)}: nobody can say which to pair.",
            "Compare stores with a method or tool in common, or with one each.",
        )
    return UsageError(
        "The two stores have no complete run in common on a task that tests something.",
        "Compare stores on the same tasks; stark report names those that are degenerate or not complete.",
    )


def _overall(method: str, score: str, pairs: Sequence[Pair]) -> Overall:
    chosen = [pair for pair in pairs if (pair.method, pair.score) == (method, score)]
    logs = [math.log(pair.ratio) for pair in chosen]
    p, bounds = permutation_test(logs)
    return Overall(
        method=method,
        score=score,
        tasks=len(logs),
        differing=differing(logs),
        ratio=math.exp(statistics.fmean(logs)),
        interval=bounds and (math.exp(bounds[0]), math.exp(bounds[1])),
        p=p,
        only_a=sum(pair.solved_a and not pair.solved_b for pair in chosen),
        only_b=sum(pair.solved_b and not pair.solved_a for pair in chosen),
    )


def _told(p: float) -> str:
    if p < 0.001:
        return "p < 0.001"
    rounded = float(f"{p:.3g}")  # but not up to what is not significant any more
    return f"p < {SIGNIFICANT}" if p < SIGNIFICANT <= rounded else f"p = {rounded:g}"


def _warnings(a: Sequence[RunResult], b: Sequence[RunResult], paired: Sequence[Sides]) -> tuple[str, ...]:
    """What else differs, so that nobody takes it for the change under test."""
    found = (
        "" if _scores(a) & _scores(b) else RULES.format(*map(_listed, map(_driving, (a, b)))),
        _differing(paired, lambda runs: {_chooser(run) for run in runs}, CHOSEN),
        _differing(paired, lambda runs: {run.device for run in runs}, DEVICES),
        _differing(paired, lambda runs: {str(run.allowed) for run in runs}, BUDGETS),
        _differing(paired, lambda runs: {str(len(runs))}, SEEDS),
    )
    return tuple(filter(None, found))


def _chooser(run: RunResult) -> str:
    """What a kernel was chosen by, beside the score it is compared by."""
    return "another score" if run.kind == Kind.RESCORED else "the score compared"


def _scores(runs: Sequence[RunResult]) -> set[str]:
    return {run.score for run in runs}


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))  # a score may have a comma


def _one_score(a: list[RunResult], b: list[RunResult], any_score: bool) -> tuple[list[RunResult], list[RunResult]]:
    """The same runs, after seeing to it that their scores can be paired."""
    if _scores(a) & _scores(b):
        return a, b
    drove_a, drove_b = _driving(a), _driving(b)
    one, other = _listed(drove_a), _listed(drove_b)
    if not any_score:
        raise UsageError(
            f"A was judged by {one} and B by {other}: those are different rules and clocks.",
            "Compare stores of the same score, or give --any-score to compare them all the same.",
        )
    if len(drove_a) + len(drove_b) > 2:
        raise UsageError(f"A has {one} and B has {other}: nobody can say which to pair.", "Compare stores of one each.")
    return _named(a, one, f"{one} / {other}"), _named(b, other, f"{one} / {other}")


def _driving(runs: Sequence[RunResult]) -> set[str]:
    """The scores by which kernels were chosen, without those by which winners were judged again."""
    return _scores([run for run in runs if run.kind != Kind.RESCORED])


def _alike(a: list[RunResult], b: list[RunResult]) -> tuple[list[RunResult], list[RunResult]]:
    """The same runs, with one name for the method of each where there is only one and nothing else would pair."""
    by_a, by_b = ({run.method for run in runs if run.complete} for runs in (a, b))
    if by_a & by_b or len(by_a) != 1 or len(by_b) != 1:
        return a, b
    (one,), (other,) = by_a, by_b
    both = f"{one} / {other}"
    return _renamed(a, one, both), _renamed(b, other, both)


def _renamed(runs: list[RunResult], method: str, name: str) -> list[RunResult]:
    return [replace(run, method=name) if run.method == method else run for run in runs]


def _named(runs: list[RunResult], score: str, name: str) -> list[RunResult]:
    return [replace(run, score=name) if run.score == score else run for run in runs]


def _counted(runs: Sequence[RunResult]) -> Runs:
    """Complete runs by what they are paired by."""
    found: Runs = {}
    for run in runs:
        if run.complete:
            found.setdefault(_key(run), []).append(run)
    return found


def _key(run: RunResult) -> Key:
    return run.task, run.method, run.score


def _degenerate(runs: Sequence[RunResult]) -> dict[tuple[str, str], str]:
    return {(run.task, run.score): run.degenerate for run in runs if run.degenerate}


def _left_out(
    a: Sequence[RunResult], b: Sequence[RunResult], shared: Sequence[Key], degenerate: Mapping[tuple[str, str], str]
) -> tuple[LeftOut, ...]:
    """Everything of both stores that is in no pair."""
    runs_a, runs_b = ({_key(run): run.complete for run in sorted(runs, key=_completeness)} for runs in (a, b))
    rest = sorted((runs_a.keys() | runs_b.keys()) - set(shared))
    whys = (
        f"degenerate: {degenerate[key[0], key[2]]}"
        if (key[0], key[2]) in degenerate
        else f"A: {_state(runs_a.get(key))}, B: {_state(runs_b.get(key))}"
        for key in rest
    )
    return tuple(LeftOut(*key, why) for key, why in zip(rest, whys, strict=True))


def _completeness(run: RunResult) -> bool:
    return run.complete


def _state(complete: bool | None) -> str:
    return {None: "none", False: "not complete", True: "complete"}[complete]


def _differing(paired: Sequence[Sides], facts: Callable[[Sequence[RunResult]], set[str]], says: str) -> str:
    """A warning where the two sides of a pair differ in facts; which ones there are on either side."""
    told = [(facts(one), facts(other)) for one, other in paired]
    if all(one == other for one, other in told):
        return ""
    return says.format(*(_listed(set().union(*side)) for side in zip(*told, strict=True)))


def _pair(key: Key, a: Sequence[RunResult], b: Sequence[RunResult]) -> Pair:
    return Pair(*key, _speed(a), _speed(b), _solved(a), _solved(b))


def _speed(runs: Sequence[RunResult]) -> float:
    return statistics.geometric_mean([kept(run.speedup()) for run in runs])


def _solved(runs: Sequence[RunResult]) -> bool:
    return any(run.speedup() is not None for run in runs)
