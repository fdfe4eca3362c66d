"""The tables of a report: the paper's, and what it takes to believe them. Pure functions of results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from stark.analysis import published
from stark.analysis.groups import COUNTS, SHORT, WHERE, Figure, Group, by_score, group, with_attempts
from stark.analysis.metrics import averages, compile_rate, correct_rate, fast_p, kept, success_rate
from stark.analysis.results import RunResult
from stark.analysis.statistics import FEWEST, Bounds, interval, rate_interval
from stark.report.cost_tables import (
    baselines_table,
    broken_table,
    cost_table,
    degenerate_table,
    endings_table,
    time_table,
)
from stark.report.header import budgets_differ
from stark.report.run_table import runs_table
from stark.report.table import Row, Table
from stark_worker.protocol.baselines import BASELINES

THRESHOLDS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)
MARKS = (1, 2, 5, 10, 15, 20, 25, 30, 60, 100)
FAILED_RULE = "Averages leave failed tasks out."
KEPT_RULE = "a task that failed or has only a slower kernel counts as 1: its user keeps the baseline"


def tables(results: Sequence[RunResult]) -> list[Table]:
    """Every table of a report, the paper's first."""
    return [table for table in every_table(results) if table.rows]


def every_table(results: Sequence[RunResult]) -> list[Table]:
    """The same with those that have nothing to show."""
    groups = group(results)
    compared = [
        table_1(groups),
        table_2(groups),
        table_3(groups),
        figure_1(groups),
        averages_table(groups),
        spread_table(groups),
        fast_p_table(groups),
        so_far_table(groups),
        scores_table(groups),
    ]
    others = [
        cost_table(groups),
        endings_table(results),
        degenerate_table(results),
        broken_table(results),
        baselines_table(results),
        time_table(groups),
        runs_table(results),
    ]
    warning = budgets_differ(groups)
    return [*(replace(table, note=f"{table.note} {warning}".strip()) for table in compared), *others]


def table_1(groups: Sequence[Group]) -> Table:
    """Success, fast_1 and speed against the three baselines."""
    scarce = _scarce(groups)
    columns = {**WHERE, **COUNTS, "attempts per run": "text", "success": "percent"}
    columns |= _against(scarce)
    rows: list[Row] = []
    for each in groups:
        counts = (*each.counts, _allowed(each))
        rows.append((*each.where, *counts, success_rate(each.metrics), *_figures(each, scarce)))
        if (theirs := published.TABLE_1.get(each.published_as or (0, ""))) is not None:
            rows.append((*_theirs(each), str(published.B), theirs.success, *_printed(theirs, scarce)))
    return Table("table-1", "Table 1: success, fast_1 and speed", columns, rows, _speed_note(scarce))


def table_2(groups: Sequence[Group]) -> Table:
    """Compile and correct rates over attempts."""
    columns = {**WHERE, **COUNTS, "compiled": "percent", "correct": "percent", "correct of compiled": "percent"}
    rows: list[Row] = []
    for each in with_attempts(groups):
        runs = each.metrics
        rates = (compile_rate(runs), correct_rate(runs), correct_rate(runs, of_compiled=True))
        rows.append((*each.where, *each.counts, *rates))
        if (theirs := published.TABLE_2.get(each.published_as or (0, ""))) is not None:
            rows.append((*_theirs(each), *theirs, None))
    note = (
        "Shares of attempts, as the search judged them. The paper does not say whether its correct rate is of all "
        "attempts or of compiled ones."
    )
    return Table("table-2", "Table 2: compile and correct rates", columns, rows, note)


def table_3(groups: Sequence[Group]) -> Table:
    """The ablation of our own searches, on level 3 where there is one."""
    ablation = [each for each in with_attempts(groups) if each.base != "reflexion" and each.searched]
    chosen = [each for each in ablation if (each.published_as or (0,))[0] == 3] or ablation
    scarce = _scarce(chosen)
    rows: list[Row] = []
    for each in chosen:
        rows.append((*each.where, *each.counts, *_figures(each, scarce)))
        if (theirs := published.TABLE_3.get(each.published_as or (0, ""))) is not None:
            rows.append((*_theirs(each), *_printed(theirs, scarce)))
    return Table("table-3", "Table 3: ablation", WHERE | COUNTS | _against(scarce), rows, _speed_note(scarce))


def figure_1(groups: Sequence[Group]) -> Table:
    """How much faster STARK's kernels are than another agent's."""
    columns = {**WHERE, "pairs": "count", "mean": "times", "median": "times", "published": "text"}
    rows: list[Row] = []
    for each, ratios in over_others(groups):
        said = published.FIGURE_1.get(each.published_as or (0, ""))
        rows.append((*each.where, len(ratios), statistics.fmean(ratios), statistics.median(ratios), said))
    note = (
        "Speed-up of STARK's kernel over eager / that of the other agent's, over the runs where both have one. The "
        "paper gives no formula, and its figures do not follow from its Table 1."
    )
    return Table("figure-1", "Figure 1: STARK over other agents", columns, rows, note)


def over_others(groups: Sequence[Group]) -> Iterator[tuple[Group, list[float]]]:
    """The ratios behind Figure 1, for every group that is not STARK's own."""
    for each in groups:
        stark = next((one for one in groups if one.where == (each.level, each.score, "stark")), None)
        if stark is None or each is stark:
            continue
        ours = {(run.task, run.seed): run.speedup() for run in stark.runs}
        ratios = [
            best / theirs for run in each.runs if (theirs := run.speedup()) and (best := ours.get((run.task, run.seed)))
        ]
        if ratios:
            yield each, ratios


def averages_table(groups: Sequence[Group]) -> Table:
    """The speed-up by three averages and both rules for failed tasks."""
    columns = {**WHERE, "against": "text", "runs": "count"}
    columns |= {"mean": "times", "geometric mean": "times", "median": "times"}
    columns |= {"failed": "count", "geometric mean, at least 1": "times"}
    rows: list[Row] = []
    for each in groups:
        for name in BASELINES:
            if found := averages(each.speedups(name)):
                figures = (found.mean, found.geometric_mean, found.median, found.failed, found.kept)
                rows.append((*each.where, SHORT[name], len(each.speedups(name)), *figures))
    note = (
        f"{FAILED_RULE} Runs: those on tasks that have a time of the baseline. The last column goes over all of them: "
        f"{KEPT_RULE}."
    )
    return Table("averages", "Speed-up, three averages", columns, rows, note)


def spread_table(groups: Sequence[Group]) -> Table:
    """How sure the main figures are, and how much they differ from seed to seed."""
    columns = {**WHERE, "figure": "text", "value": "number", "95 % from": "number", "to": "number"}
    columns |= {"lowest seed": "number", "highest seed": "number"}
    rows: list[Row] = []
    for each in groups:
        for name, figure, bounds_of, finish in _FIGURES:
            if by_task := each.by_task(figure):
                value = statistics.fmean(value for values in by_task for value in values)
                seeds = [statistics.fmean(values) for values in each.by_seed(figure)]
                ends = (min(seeds), max(seeds)) if len(seeds) > 1 else (None, None)
                figures = (value, *(bounds_of(by_task) or (None, None)), *ends)
                rows.append((*each.where, name, *(None if one is None else finish(one) for one in figures)))
    note = (
        "fast_1 and speed are against eager. Success and fast_1 count a failed task as 0; their intervals are "
        f"Wilson's, with a trial per task. Of speed, {KEPT_RULE}; its interval is Student's over "
        "tasks, which takes their logarithms for normal and is too narrow where many count as 1. It is left open over "
        f"fewer than {FEWEST} tasks and where all are alike. Seeds are compared on the tasks that all of them have."
    )
    return Table("spread", "Confidence intervals and seeds", columns, rows, note)


def fast_p_table(groups: Sequence[Group]) -> Table:
    """fast_p for several p, against eager."""
    columns = WHERE | COUNTS | {f"p = {p}": "percent" for p in THRESHOLDS}
    rows = [(*each.where, *each.counts, *(fast_p(each.speedups(), p) for p in THRESHOLDS)) for each in groups]
    return Table("fast-p", "fast_p: share of tasks at least p times as fast as eager", columns, rows)


def so_far_table(groups: Sequence[Group]) -> Table:
    """Best kernel so far against attempts."""
    curves = [(each.where, each.curve()) for each in with_attempts(groups)]
    longest = max((len(curve) for _, curve in curves), default=0)
    marks = [mark for mark in MARKS if mark < longest] + [longest]
    columns = WHERE | {f"after {mark}": "times" for mark in marks}
    rows = [(*where, *(curve[min(mark, len(curve)) - 1] for mark in marks)) for where, curve in curves]
    note = (
        "Geometric mean of the speed-up over eager; 1 while there is no kernel, or only slower ones. These are times "
        "of the search, the best of many noisy ones: no final confirms them."
    )
    return Table("so-far", "Best so far against attempts", columns, rows, note)


def scores_table(groups: Sequence[Group]) -> Table:
    """The same winners by both scores, over the same tasks."""
    scores = list(dict.fromkeys(each.score for each in groups))
    columns = {"level": "text", "method": "text", "tasks": "count", "tasks left out": "count"}
    for score in scores:
        columns |= {f"success, {score}": "percent", f"speed, {score}": "times"}
    rows: list[Row] = []
    for level, method, sides in by_score(groups) if len(scores) > 1 else ():
        keys = [each.keys for each in sides]
        shared = set.intersection(*keys)
        counts = (len({task for task, _ in shared}), len({task for task, _ in set.union(*keys) - shared}))
        rows.append((level, method, *counts, *(value for each in sides for value in _kept(each.on(shared)))))
    note = (
        "One score drives a search; its winner is judged again by the other. Both columns go over the runs that count "
        "by both scores; left out are tasks of which a run counts by one alone, because by the other the task is "
        f"degenerate or the run is not complete. Speed: geometric mean over all of them; {KEPT_RULE}."
    )
    return Table("scores", "Both scores side by side", columns, rows, note)


# -- what they are made of --------------------------------------------------------------------------------------------


def _scarce(groups: Sequence[Group]) -> list[str]:
    """The baselines that some, but not all runs of a table have a time of."""
    return [
        name
        for name in BASELINES
        if any(each.speedups(name) for each in groups)
        and any(len(each.speedups(name)) < len(each.runs) for each in groups)
    ]


def _against(scarce: Sequence[str]) -> dict[str, str]:
    """The columns against the baselines, and over how many runs those go that not all runs have."""
    columns = {f"fast_1 {SHORT[name]}": "percent" for name in BASELINES}
    columns |= {f"speed {SHORT[name]}": "times" for name in BASELINES}
    return columns | {f"runs {SHORT[name]}": "count" for name in scarce}


def _figures(each: Group, scarce: Sequence[str]) -> list[float | None]:
    return [*_fast_1(each), *_speed(each), *(len(each.speedups(name)) for name in scarce)]


def _printed(theirs: published.Published, scarce: Sequence[str]) -> list[float | None]:
    return [*theirs.fast_1, *theirs.speed, *(None for _ in scarce)]


def _speed_note(scarce: Sequence[str]) -> str:
    note = f"Speed is the mean. {FAILED_RULE}"
    if not scarce:
        return note
    fewer = " and ".join(SHORT[name] for name in scarce)
    return f"{note} Not every task has a time of {fewer}: those columns go over as many runs as the last columns say."


def _fast_1(each: Group) -> list[float | None]:
    return [fast_p(each.speedups(name)) if each.speedups(name) else None for name in BASELINES]


def _speed(each: Group) -> list[float | None]:
    found = [averages(each.speedups(name)) for name in BASELINES]
    return [one.mean if one else None for one in found]


def _kept(each: Group) -> tuple[float | None, float | None]:
    found = averages(each.speedups())
    return success_rate(each.metrics) if each.runs else None, found.kept if found else None


def _allowed(each: Group) -> str:
    """The attempts of a row's runs; two numbers are the ends of a range."""
    return " to ".join(map(str, dict.fromkeys((each.allowed[0], each.allowed[-1])))) if each.allowed else "0"


def _theirs(each: Group) -> tuple[str, str, str, None, None]:
    """What names a row of the paper's, which does not say how many tasks and runs it goes over."""
    return each.level, "the paper", each.method, None, None


def _at_least_1(logs: list[list[float]]) -> Bounds | None:
    """The interval of the logarithm of a speed that cannot be below 1."""
    bounds = interval(logs)
    return bounds and (max(0.0, bounds[0]), bounds[1])


# name, figure of one run whose mean is taken, interval of that mean, what makes a figure of the mean
_FIGURES: list[tuple[str, Figure, Callable[[list[list[float]]], Bounds | None], Callable[[float], float]]] = [
    ("success", lambda run: float(run.speedup() is not None), rate_interval, float),
    ("fast_1", lambda run: fast_p([run.speedup()]), rate_interval, float),
    ("speed, geometric mean", lambda run: math.log(kept(run.speedup())), _at_least_1, math.exp),
]
