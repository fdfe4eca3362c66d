"""The findings: three sentences, and one row per task. Pure functions of results."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stark.analysis.metrics import clamp_speedup
from stark.analysis.results import RunResult
from stark.core.records import EndReason, Kind
from stark.report.run_table import BOUND, bound_cells
from stark.report.table import Table
from stark_worker.protocol.baselines import COMPILED, EAGER

HOUR_S = 3600.0
FOUND = "found"  # the name of the table
BOUND_NOTE = (
    " The bound is the least time that the device needs for the task. A hint may be too high or too low; a bound that "
    "shorter algebra has beaten is left out."
)


class Verdict(enum.StrEnum):
    """The result of all runs on a task, in words."""

    FASTER = "faster than eager"
    UNSURE = "not surely faster"
    SLOWER = "slower than eager"
    NOT_CONFIRMED = "no kernel was confirmed"
    NO_KERNEL = "no correct kernel"
    UNUSABLE = "the task cannot be used"
    UNFINISHED = "unfinished"


@dataclass(frozen=True)
class TaskFinding:
    """A task by one score: its best run, and the cost of all its runs. ``usd`` is None if a price is not known."""

    task: str
    score: str
    best: RunResult
    verdict: Verdict
    runs: int
    attempts: int
    usd: float | None
    seconds: float

    @property
    def node(self) -> int | None:
        """The number of the best kernel's node."""
        if self.best.final is not None:
            return self.best.final.node_id if self.best.final.holds else None
        timed = [each for each in self.best.judgements if each.runtime_ms is not None and each.id]
        return min(timed, key=lambda each: each.runtime_ms or 0.0).id if timed else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The speed-up over eager, with 99 % confidence, from the final check."""
        return self.best.final.speedup_interval if self.best.final else None

    @property
    def compiled_ms(self) -> float | None:
        """The time of torch.compile beside the eager time of the row, by their ratio in the same turns."""
        metrics, baselines = self.best.metrics, self.best.baselines
        if metrics is None or COMPILED not in baselines:
            return None
        return baselines[COMPILED] / baselines[EAGER] * metrics.paired_root_ms


def find_tasks(results: Sequence[RunResult]) -> list[TaskFinding]:
    """Return one finding per task and score, in the order of the results."""
    found: dict[tuple[str, str], list[RunResult]] = {}
    for run in results:
        if run.kind != Kind.RESCORED:  # the same winners again
            found.setdefault((run.task, run.score), []).append(run)
    return [_find_task(*key, runs) for key, runs in found.items()]


def _find_task(task: str, score: str, runs: Sequence[RunResult]) -> TaskFinding:
    best = max(runs, key=_merit)
    prices = [usage.usd for run in runs for usage in run.usage.values()]
    known = [price for price in prices if price is not None]
    return TaskFinding(
        task,
        score,
        best,
        _judge(best),
        len(runs),
        sum(run.metrics.attempts for run in runs if run.metrics),
        sum(known) if len(known) == len(prices) else None,
        sum(run.wall_s for run in runs),
    )


def _merit(run: RunResult) -> tuple[bool, bool, float]:
    """The order of runs on a task: a confirmed kernel first, then any kernel, then the fastest."""
    is_confirmed = run.final is not None and run.final.holds
    return is_confirmed, run.speedup() is not None, run.speedup() or 0.0


def _judge(run: RunResult) -> Verdict:
    speedup, interval = run.speedup(), run.final.speedup_interval if run.final else None
    if run.degenerate or (run.ending and run.ending.reason is EndReason.BROKEN_TASK):
        return Verdict.UNUSABLE
    if speedup is not None and speedup < 1.0:
        return Verdict.SLOWER
    if speedup is not None:
        return Verdict.FASTER if interval is not None and interval[0] > 1.0 else Verdict.UNSURE
    if not run.complete:
        return Verdict.UNFINISHED
    return Verdict.NOT_CONFIRMED if run.final is not None else Verdict.NO_KERNEL


def describe_findings(found: Sequence[TaskFinding]) -> list[str]:
    """Return three sentences: what was found, how fast it is, what it took."""
    return [_describe_outcomes(found), _describe_speed(found), _describe_cost(found)]


def _describe_outcomes(found: Sequence[TaskFinding]) -> str:
    counts = {verdict: sum(each.verdict is verdict for each in found) for verdict in Verdict}
    parts = [f"{counts[verdict]} {_TASKS_WITH[verdict]}" for verdict in Verdict if counts[verdict]]
    if len(found) == 1:
        return f"The task {found[0].task}{_TASK_WITH.get(found[0].verdict) or ' ' + _TASKS_WITH[found[0].verdict]}."
    return f"Of {len(found)} tasks, {_join(parts)}."


def _describe_speed(found: Sequence[TaskFinding]) -> str:
    timed = [each for each in found if each.best.speedup() is not None]
    if not timed:
        return "There is no kernel to compare with eager."
    usable = [each for each in found if each.verdict is not Verdict.UNUSABLE]
    mean = statistics.geometric_mean([clamp_speedup(each.best.speedup()) for each in usable or timed])
    best = max(timed, key=lambda each: each.best.speedup() or 0.0)
    compiled = [each.best.speedup(COMPILED) for each in usable if COMPILED in each.best.baselines]
    against = ""
    if compiled:
        ratio = statistics.geometric_mean([clamp_speedup(one) for one in compiled])
        against = f" and {ratio:.2f}x over torch.compile"
    if len(found) == 1:
        return f"The best kernel is {best.best.speedup() or 0.0:.2f}x as fast as eager{_compiled_words(best)}."
    return (
        f"The geometric mean of the speed-ups is {mean:.2f}x over eager{against}, with 1 for a task without a faster "
        f"kernel; the largest is {best.best.speedup() or 0.0:.2f}x, on {best.task}."
    )


def _compiled_words(each: TaskFinding) -> str:
    speedup = each.best.speedup(COMPILED) if COMPILED in each.best.baselines else None
    return "" if speedup is None else f" and {speedup:.2f}x as fast as torch.compile"


def _describe_cost(found: Sequence[TaskFinding]) -> str:
    runs, attempts = sum(each.runs for each in found), sum(each.attempts for each in found)
    prices = [each.usd for each in found if each.usd is not None]
    money = f"${sum(prices):,.2f}" if len(prices) == len(found) else "an unknown amount of money"
    hours = sum(each.seconds for each in found) / HOUR_S
    what = "1 run" if runs == 1 else f"{runs} runs"
    return f"That took {attempts:,} attempts in {what}, {hours:.1f} hours of searching, and {money}."


def tasks_table(found: Sequence[TaskFinding]) -> Table:
    """One row per task. The bound has columns if one of the tasks has a bound; old stores hold none."""
    has_bounds = any(each.best.light for each in found)
    columns = {"task": "text", "eager ms": "number", "torch.compile ms": "number", "ours ms": "number"}
    columns |= {"speed": "times", "99 % from": "times", "to": "times"}
    columns |= BOUND if has_bounds else {}
    columns |= {"result": "text", "attempts": "count", "cost": "money", "kernel": "text"}
    several = len({each.score for each in found}) > 1
    columns |= {"score": "text"} if several else {}
    rows = []
    for each in found:
        metrics = each.best.metrics
        bound = bound_cells(each.best) if has_bounds else ()
        times = (metrics.paired_root_ms, each.compiled_ms, metrics.best_ms) if metrics else (None, None, None)
        kernel = "" if each.node is None else f"#{each.node} of {each.best.method}"
        facts = (each.verdict.value, each.attempts, each.usd, kernel, *((each.score,) if several else ()))
        rows.append((each.task, *times, each.best.speedup(), *(each.interval or (None, None)), *bound, *facts))
    note = (
        "The best run of each task: eager and ours were timed in turns, torch.compile in turns with eager and scaled. "
        "Attempts and cost are those of all its runs. Without an interval, no final check confirms the speed."
    )
    note += BOUND_NOTE if has_bounds else ""
    return Table(FOUND, "Task by task", columns, rows, note)


def _join(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


_TASKS_WITH = {
    Verdict.FASTER: "got a kernel that is surely faster than eager",
    Verdict.UNSURE: "got a correct kernel that is not surely faster",
    Verdict.SLOWER: "got a correct kernel that is slower than eager",
    Verdict.NOT_CONFIRMED: "lost all kernels in the final check",
    Verdict.NO_KERNEL: "got no correct kernel",
    Verdict.UNUSABLE: "cannot be used",
    Verdict.UNFINISHED: "are unfinished",
}

_TASK_WITH = {Verdict.UNFINISHED: " is unfinished"}
