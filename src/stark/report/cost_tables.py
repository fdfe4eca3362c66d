"""The tables of a report on cost, time and endings."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from stark.analysis.groups import ROW_COLUMNS, Group
from stark.analysis.results import RunResult
from stark.core.records import EndReason, Kind, RoleUsage
from stark.core.tree import Role
from stark.report.table import Row, Table
from stark_worker.protocol.baselines import BASELINES
from stark_worker.protocol.report import Phase, sum_phases

HOUR_S = 3600.0
EXHAUSTED, EXHAUSTED_SOLVED = "budget exhausted", "of these solved"
SLOWER_NOTE = "A run is solved if it has a correct kernel, even one that is slower than eager."


class RunOutcome(enum.StrEnum):
    """The result of a run, as the endings table counts it."""

    SOLVED = "solved"
    SLOWER = "solved, slower than eager"
    NOT_CONFIRMED = "winner not confirmed"
    NO_KERNEL = "no correct kernel"
    DEGENERATE_TASK = "degenerate task"
    BROKEN_TASK = "task does not work here"
    FAULT = "fault"
    UNFINISHED = "unfinished"


_BY_REASON = {
    EndReason.DEGENERATE_TASK: RunOutcome.DEGENERATE_TASK,
    EndReason.BROKEN_TASK: RunOutcome.BROKEN_TASK,
    EndReason.FAULT: RunOutcome.FAULT,
}


def cost_table(groups: Sequence[Group]) -> Table:
    """Tokens and money by role, and money per solved run."""
    columns = {**ROW_COLUMNS, "role": "text", "calls": "count", "tokens in": "count", "tokens out": "count"}
    columns |= {"money": "money", "money per solved run": "money, if any"}
    rows: list[Row] = []
    for each in groups:
        solved = sum(run.success for run in each.metrics)
        roles = sorted({role for run in each.runs for role in run.usage})
        shares = [(role, _usages(each, [role])) for role in roles]
        for name, usages in [*shares, *([("all", _usages(each, roles))] if len(roles) > 1 else [])]:
            usd = _sum_if_known([one.usd for one in usages])
            tokens = [sum(one.usage.input_tokens for one in usages), sum(one.usage.output_tokens for one in usages)]
            rows.append(
                (
                    *each.labels,
                    str(name),
                    sum(one.calls for one in usages),
                    *tokens,
                    usd,
                    usd / solved if usd is not None and solved else None,
                )
            )
    note = (
        "Calls whose reply never arrived are not included; budgets count them in full. Money is unknown if the price "
        f"of any call is. {SLOWER_NOTE}"
    )
    return Table("cost", "Cost by role", columns, rows, note)


def endings_table(results: Sequence[RunResult]) -> Table:
    """Count the searches by outcome, and those that reached a limit before their last attempt."""
    names = (*RunOutcome, EXHAUSTED, EXHAUSTED_SOLVED)
    counts: dict[tuple[str, str], Counter[str]] = {}
    for run in results:
        if run.kind == Kind.SEARCH:
            counts.setdefault((run.score, run.method), Counter()).update(_columns_of(run))
    rows = [(*where, *(found[name] for name in names)) for where, found in sorted(counts.items())]
    note = (
        "Winner not confirmed: none of the fastest kernels passed the final check. Faults and unfinished runs count in "
        "no other table. Budget exhausted: the run reached a limit on tokens, money or time before its last attempt."
    )
    columns = {"score": "text", "method": "text", **{str(name): "count" for name in names}}
    return Table("endings", "Endings of the searches", columns, rows, note)


def degenerate_table(results: Sequence[RunResult]) -> Table:
    """The tasks whose check accepts kernels that compute nothing."""
    found = {(run.task, run.score): run.degenerate for run in results if run.degenerate}
    rows = [(*where, why) for where, why in sorted(found.items())]
    columns = {"task": "text", "score": "text", "why": "text"}
    return Table("degenerate", "Degenerate tasks, left out of the rows above", columns, rows)


def broken_table(results: Sequence[RunResult]) -> Table:
    """The tasks whose reference could not be measured."""
    found = {
        (run.task, run.score): " ".join(run.ending.message.split())  # a log has several lines
        for run in results
        if run.ending is not None and run.ending.reason == EndReason.BROKEN_TASK
    }
    rows = [(*where, why) for where, why in sorted(found.items())]
    columns = {"task": "text", "score": "text", "why": "text"}
    note = "Their runs count only in the endings table. The next stark bench tries them again."
    return Table("broken", "Tasks that do not work here", columns, rows, note)


def baselines_table(results: Sequence[RunResult]) -> Table:
    """The baselines that could not be measured on some task."""
    complete = [run for run in results if run.complete]
    measured = {(run.score, name) for run in results for name in (*run.baselines, *run.failed_baselines)}
    found = {
        (run.task, run.score, name): run.failed_baselines.get(name, "not measured")
        for run in complete
        for name in BASELINES
        if (run.score, name) in measured and name not in run.baselines
    }
    rows = [(*where, why) for where, why in sorted(found.items())]
    columns = {"task": "text", "score": "text", "baseline": "text", "why": "text"}
    note = "Nothing is compared with these. The columns against such a baseline cover fewer runs and state how many."
    return Table("baselines", "Baselines without a time", columns, rows, note)


def time_table(groups: Sequence[Group]) -> Table:
    """Hours spent evaluating, waiting for models and searching."""
    columns = {
        **ROW_COLUMNS,
        "runs": "count",
        "hours evaluating": "hours",
        "hours waiting for models": "hours",
        "hours searching": "hours",
    }
    rows = [
        (
            *each.labels,
            len(each.runs),
            sum(run.evaluation_s for run in each.runs) / HOUR_S,
            sum(one.duration_s for one in _usages(each, Role)) / HOUR_S,
            sum(run.wall_s for run in each.runs) / HOUR_S or None,
        )
        for each in groups
    ]
    note = (
        "Evaluating covers candidates and final checks. The reference of a task is judged once for all runs and is not "
        "included. Parallel runs wait for each other."
    )
    return Table("time", "Time, summed over runs", columns, rows, note)


def phases_table(groups: Sequence[Group]) -> Table:
    """Hours of evaluating by phase."""
    columns = {**ROW_COLUMNS, "runs": "count", **{f"hours {phase}": "hours" for phase in Phase}}
    rows: list[Row] = []
    for each in groups:
        phases = asdict(sum_phases(run.phases_s for run in each.runs))
        rows.append((*each.labels, len(each.runs), *(phases[phase] / HOUR_S for phase in Phase)))
    note = "Queue is the wait for a device, start the start of processes. Stores of earlier versions hold no phases."
    return Table("phases", "Phases of evaluating, summed over runs", columns, rows, note)


def _usages(each: Group, roles: Iterable[Role]) -> list[RoleUsage]:
    return [run.usage[role] for role in roles for run in each.runs if role in run.usage]


def _sum_if_known(amounts: Sequence[float | None]) -> float | None:
    """The sum; None if any amount is unknown."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def is_not_confirmed(run: RunResult) -> bool:
    """True if the run found kernels but none was confirmed."""
    return run.final is not None and run.metrics is not None and not run.metrics.success


def _columns_of(run: RunResult) -> list[str]:
    """The columns of the endings table that a run counts in."""
    end = classify_run(run)
    exhausted = run.complete and run.ending is not None and run.ending.reason.is_limit
    if not exhausted:
        return [end]
    return [end, EXHAUSTED, EXHAUSTED_SOLVED] if end in (RunOutcome.SOLVED, RunOutcome.SLOWER) else [end, EXHAUSTED]


def classify_run(run: RunResult) -> RunOutcome:
    """Return the outcome of a search or of a kernel that was only judged."""
    if run.ending and run.ending.reason in _BY_REASON:
        return _BY_REASON[run.ending.reason]
    if not run.complete:
        return RunOutcome.UNFINISHED
    if run.metrics is not None and run.metrics.success:
        return RunOutcome.SLOWER if (run.speedup() or 0.0) < 1.0 else RunOutcome.SOLVED
    return RunOutcome.NOT_CONFIRMED if is_not_confirmed(run) else RunOutcome.NO_KERNEL
