"""The tables of a report: the paper's own, and intervals, costs and endings. Pure functions of results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from stark.analysis import published
from stark.analysis.groups import (
    BASELINE_LABELS,
    COUNT_COLUMNS,
    ROW_COLUMNS,
    Group,
    RunFigure,
    group_runs,
    groups_with_attempts,
    rows_by_score,
)
from stark.analysis.metrics import clamp_speedup, compile_rate, compute_averages, correct_rate, fast_p, success_rate
from stark.analysis.results import RunResult
from stark.analysis.statistics import MIN_TASKS, Bounds, mean_interval, rate_interval
from stark.report.cost_tables import (
    baselines_table,
    broken_table,
    cost_table,
    degenerate_table,
    endings_table,
    phases_table,
    time_table,
)
from stark.report.header import warn_of_budgets
from stark.report.run_table import runs_table
from stark.report.table import Row, Table
from stark_worker.protocol.baselines import BASELINES

FAST_P_THRESHOLDS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)
ATTEMPT_MARKS = (1, 2, 5, 10, 15, 20, 25, 30, 60, 100)
FAILED_RULE = "Averages leave failed tasks out."
CLAMP_RULE = "a task without a kernel, or with a slower one, counts as 1"


def filled_tables(results: Sequence[RunResult]) -> list[Table]:
    """The tables of a report that have rows, the paper's first."""
    return [table for table in all_tables(results) if table.rows]


def all_tables(results: Sequence[RunResult]) -> list[Table]:
    """All tables of a report, also those without rows."""
    groups = group_runs(results)
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
        phases_table(groups),
        runs_table(results),
    ]
    warning = warn_of_budgets(groups)
    return [*(replace(table, note=f"{table.note} {warning}".strip()) for table in compared), *others]


def table_1(groups: Sequence[Group]) -> Table:
    """Table 1: success, fast_1 and speed against the three baselines."""
    partial = _partial_baselines(groups)
    columns = {**ROW_COLUMNS, **COUNT_COLUMNS, "attempts per run": "text", "success": "percent"}
    columns |= _baseline_columns(partial)
    rows: list[Row] = []
    for each in groups:
        counts = (*each.counts, _format_attempts(each))
        rows.append((*each.labels, *counts, success_rate(each.metrics), *_baseline_figures(each, partial)))
        if (paper := published.TABLE_1.get(each.paper_key)) is not None:
            rows.append((*_paper_labels(each), str(published.ATTEMPTS), paper.success, *_paper_figures(paper, partial)))
    return Table("table-1", "Table 1: success, fast_1 and speed", columns, rows, _speed_note(partial))


def table_2(groups: Sequence[Group]) -> Table:
    """Table 2: compile and correct rates over attempts."""
    columns = {
        **ROW_COLUMNS,
        **COUNT_COLUMNS,
        "compiled": "percent",
        "correct": "percent",
        "correct of compiled": "percent",
    }
    rows: list[Row] = []
    for each in groups_with_attempts(groups):
        runs = each.metrics
        rates = (compile_rate(runs), correct_rate(runs), correct_rate(runs, of_compiled=True))
        rows.append((*each.labels, *each.counts, *rates))
        if (paper := published.TABLE_2.get(each.paper_key)) is not None:
            rows.append((*_paper_labels(each), *paper, None))
    note = (
        "Shares of attempts, as judged in the search. The paper does not say if its correct rate is of all attempts or "
        "of compiled ones."
    )
    return Table("table-2", "Table 2: compile and correct rates", columns, rows, note)


def table_3(groups: Sequence[Group]) -> Table:
    """Table 3: the ablation of STARK's methods, on level 3 if there are runs on it."""
    ablation = [each for each in groups_with_attempts(groups) if each.base_method != "reflexion" and each.is_searched]
    chosen = [each for each in ablation if each.paper_key[0] == 3] or ablation
    partial = _partial_baselines(chosen)
    rows: list[Row] = []
    for each in chosen:
        rows.append((*each.labels, *each.counts, *_baseline_figures(each, partial)))
        if (paper := published.TABLE_3.get(each.paper_key)) is not None:
            rows.append((*_paper_labels(each), *_paper_figures(paper, partial)))
    return Table(
        "table-3",
        "Table 3: ablation",
        ROW_COLUMNS | COUNT_COLUMNS | _baseline_columns(partial),
        rows,
        _speed_note(partial),
    )


def figure_1(groups: Sequence[Group]) -> Table:
    """Figure 1: speed of STARK's kernels over those of other agents."""
    columns = {**ROW_COLUMNS, "pairs": "count", "mean": "times", "median": "times", "published": "text"}
    rows: list[Row] = []
    for each, ratios in stark_ratios(groups):
        in_paper = published.FIGURE_1.get(each.paper_key)
        rows.append((*each.labels, len(ratios), statistics.fmean(ratios), statistics.median(ratios), in_paper))
    note = (
        "Speed-up of STARK's kernel over eager, divided by that of the other agent, over the runs in which both have a "
        "kernel. The paper gives no formula, and its figures do not follow from its Table 1."
    )
    return Table("figure-1", "Figure 1: STARK over other agents", columns, rows, note)


def stark_ratios(groups: Sequence[Group]) -> Iterator[tuple[Group, list[float]]]:
    """The ratios behind Figure 1, for every group but STARK's."""
    for each in groups:
        stark = next((one for one in groups if one.labels == (str(each.level), each.score, "stark")), None)
        if stark is None or each is stark:
            continue
        by_key = {(run.task, run.seed): run.speedup() for run in stark.runs}
        ratios = [
            best / other for run in each.runs if (other := run.speedup()) and (best := by_key.get((run.task, run.seed)))
        ]
        if ratios:
            yield each, ratios


def averages_table(groups: Sequence[Group]) -> Table:
    """Three averages of the speed-up, with both rules for failed tasks."""
    columns = {**ROW_COLUMNS, "against": "text", "runs": "count"}
    columns |= {"mean": "times", "geometric mean": "times", "median": "times"}
    columns |= {"failed": "count", "geometric mean, at least 1": "times"}
    rows: list[Row] = []
    for each in groups:
        for name in BASELINES:
            if found := compute_averages(each.speedups(name)):
                figures = (found.mean, found.geometric_mean, found.median, found.failed, found.clamped)
                rows.append((*each.labels, BASELINE_LABELS[name], len(each.speedups(name)), *figures))
    note = (
        f"{FAILED_RULE} Runs: those on tasks with a time of the baseline. The last column covers all of them: "
        f"{CLAMP_RULE}."
    )
    return Table("averages", "Speed-up, three averages", columns, rows, note)


def spread_table(groups: Sequence[Group]) -> Table:
    """Confidence intervals of the main figures, and their range over seeds."""
    columns = {**ROW_COLUMNS, "figure": "text", "value": "number", "95 % from": "number", "to": "number"}
    columns |= {"lowest seed": "number", "highest seed": "number"}
    rows: list[Row] = []
    for each in groups:
        for name, figure, bounds_of, finish in _SPREAD_FIGURES:
            if by_task := each.by_task(figure):
                value = statistics.fmean(value for values in by_task for value in values)
                seeds = [statistics.fmean(values) for values in each.by_seed(figure)]
                ends = (min(seeds), max(seeds)) if len(seeds) > 1 else (None, None)
                figures = (value, *(bounds_of(by_task) or (None, None)), *ends)
                rows.append((*each.labels, name, *(None if one is None else finish(one) for one in figures)))
    note = (
        "fast_1 and speed are against eager. Success and fast_1 count a failed task as 0; their intervals are Wilson's "
        f"with a trial per task. For speed, {CLAMP_RULE}; its interval is Student's over the logarithms of tasks. It "
        "assumes a normal distribution and is too narrow if many tasks count as 1. There is none for fewer than "
        f"{MIN_TASKS} tasks, nor if all tasks are equal. Seeds are compared on the tasks that all of them have."
    )
    return Table("spread", "Confidence intervals and seeds", columns, rows, note)


def fast_p_table(groups: Sequence[Group]) -> Table:
    """fast_p for several p, against eager."""
    columns = ROW_COLUMNS | COUNT_COLUMNS | {f"p = {p}": "percent" for p in FAST_P_THRESHOLDS}
    rows = [(*each.labels, *each.counts, *(fast_p(each.speedups(), p) for p in FAST_P_THRESHOLDS)) for each in groups]
    return Table("fast-p", "fast_p: share of tasks at least p times as fast as eager", columns, rows)


def so_far_table(groups: Sequence[Group]) -> Table:
    """Best speed-up after a number of attempts."""
    curves = [(each.labels, each.best_so_far_curve()) for each in groups_with_attempts(groups)]
    longest = max((len(curve) for _, curve in curves), default=0)
    marks = [mark for mark in ATTEMPT_MARKS if mark < longest] + [longest]
    columns = ROW_COLUMNS | {f"after {mark}": "times" for mark in marks}
    rows = [(*where, *(curve[min(mark, len(curve)) - 1] for mark in marks)) for where, curve in curves]
    note = (
        "Geometric mean of the speed-up over eager, at least 1. These are times of the search, the best of many noisy "
        "ones; the final check does not confirm them."
    )
    return Table("so-far", "Best speed-up by number of attempts", columns, rows, note)


def scores_table(groups: Sequence[Group]) -> Table:
    """The same winners by both scores, on the same tasks."""
    scores = list(dict.fromkeys(each.score for each in groups))
    columns = {"level": "text", "method": "text", "tasks": "count", "tasks left out": "count"}
    for score in scores:
        columns |= {f"success, {score}": "percent", f"speed, {score}": "times"}
    rows: list[Row] = []
    for level, method, sides in rows_by_score(groups) if len(scores) > 1 else ():
        keys = [each.keys for each in sides]
        shared = set.intersection(*keys)
        counts = (len({task for task, _ in shared}), len({task for task, _ in set.union(*keys) - shared}))
        figures = (value for each in sides for value in _success_and_speed(each.restrict_to(shared)))
        rows.append((str(level), method, *counts, *figures))
    note = (
        "One score drives a search; its winner is judged again by the other. Both columns cover the runs that count by "
        "both scores. A task is left out if it is degenerate, or its run not complete, by one of them. "
        f"Speed: geometric mean; {CLAMP_RULE}."
    )
    return Table("scores", "Both scores side by side", columns, rows, note)


# -- parts of the tables ----------------------------------------------------------------------------------------------


def _partial_baselines(groups: Sequence[Group]) -> list[str]:
    """The baselines measured for some, but not all, runs of a table."""
    return [
        name
        for name in BASELINES
        if any(each.speedups(name) for each in groups)
        and any(len(each.speedups(name)) < len(each.runs) for each in groups)
    ]


def _baseline_columns(partial: Sequence[str]) -> dict[str, str]:
    """The columns against the baselines, with the number of runs for partial ones."""
    columns = {f"fast_1 {BASELINE_LABELS[name]}": "percent" for name in BASELINES}
    columns |= {f"speed {BASELINE_LABELS[name]}": "times" for name in BASELINES}
    return columns | {f"runs {BASELINE_LABELS[name]}": "count" for name in partial}


def _baseline_figures(each: Group, partial: Sequence[str]) -> list[float | None]:
    return [*_fast_1_figures(each), *_mean_speeds(each), *(len(each.speedups(name)) for name in partial)]


def _paper_figures(paper: published.Published, partial: Sequence[str]) -> list[float | None]:
    return [*paper.fast_1, *paper.speed, *(None for _ in partial)]


def _speed_note(partial: Sequence[str]) -> str:
    note = f"Speed is the mean. {FAILED_RULE}"
    if not partial:
        return note
    fewer = " and ".join(BASELINE_LABELS[name] for name in partial)
    return f"{note} Not every task has a time of {fewer}: the last columns state how many runs these figures cover."


def _fast_1_figures(each: Group) -> list[float | None]:
    return [fast_p(each.speedups(name)) if each.speedups(name) else None for name in BASELINES]


def _mean_speeds(each: Group) -> list[float | None]:
    found = [compute_averages(each.speedups(name)) for name in BASELINES]
    return [one.mean if one else None for one in found]


def _success_and_speed(each: Group) -> tuple[float | None, float | None]:
    found = compute_averages(each.speedups())
    return success_rate(each.metrics) if each.runs else None, found.clamped if found else None


def _format_attempts(each: Group) -> str:
    """The attempts of a row's runs, as a number or a range."""
    return (
        " to ".join(map(str, dict.fromkeys((each.allowed_attempts[0], each.allowed_attempts[-1]))))
        if each.allowed_attempts
        else "0"
    )


def _paper_labels(each: Group) -> tuple[str, str, str, None, None]:
    """The labels of a row from the paper, which does not state its numbers of tasks and runs."""
    return str(each.level), "the paper", each.method, None, None


def _speed_interval(logs: list[list[float]]) -> Bounds | None:
    """Interval of the logarithm of a speed that cannot be below 1."""
    bounds = mean_interval(logs)
    return bounds and (max(0.0, bounds[0]), bounds[1])


# Name, figure of one run, interval of its mean, conversion of the mean.
_SPREAD_FIGURES: list[tuple[str, RunFigure, Callable[[list[list[float]]], Bounds | None], Callable[[float], float]]] = [
    ("success", lambda run: float(run.speedup() is not None), rate_interval, float),
    ("fast_1", lambda run: fast_p([run.speedup()]), rate_interval, float),
    ("speed, geometric mean", lambda run: math.log(clamp_speedup(run.speedup())), _speed_interval, math.exp),
]
