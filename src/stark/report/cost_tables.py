"""The tables of a report that are about money, time and endings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from stark.analysis.groups import WHERE, Group
from stark.analysis.results import RunResult
from stark.core.records import BROKEN_TASK, DEGENERATE_TASK, FAULT, Kind, RoleUsage, meaning
from stark.core.tree import Role
from stark.report.table import Row, Table
from stark_worker.protocol.baselines import BASELINES

LOST = "no final held"
UNFINISHED = "unfinished"
HOUR_S = 3600.0
ENDINGS = ("solved", LOST, "no correct kernel", "degenerate task", "task does not work here", "fault", UNFINISHED)
EXHAUSTED, EXHAUSTED_SOLVED = "budget exhausted", "of these solved"


def cost_table(groups: Sequence[Group]) -> Table:
    """Tokens and money by role, and money per solved task."""
    columns = {**WHERE, "role": "text", "calls": "count", "tokens in": "count", "tokens out": "count"}
    columns |= {"money": "money", "money per solved run": "money, if any"}
    rows: list[Row] = []
    for each in groups:
        solved = sum(run.success for run in each.metrics)
        roles = sorted({role for run in each.runs for role in run.usage})
        shares = [(role, _usages(each, [role])) for role in roles]
        for name, usages in [*shares, *([("all", _usages(each, roles))] if len(roles) > 1 else [])]:
            usd = _together([one.usd for one in usages])
            tokens = [sum(one.usage.input_tokens for one in usages), sum(one.usage.output_tokens for one in usages)]
            rows.append(
                (
                    *each.where,
                    str(name),
                    sum(one.calls for one in usages),
                    *tokens,
                    usd,
                    usd / solved if usd is not None and solved else None,
                )
            )
    note = (
        "Calls whose reply never arrived are not in here; budgets count them in full. Money is unknown where the price "
        "of any call is."
    )
    return Table("cost", "Cost by role", columns, rows, note)


def endings_table(results: Sequence[RunResult]) -> Table:
    """How the searches ended: a failed task and a fault are different things, and either a solved or a failed task may
    have run out of money before its last attempt."""
    names = (*ENDINGS, EXHAUSTED, EXHAUSTED_SOLVED)
    counts: dict[tuple[str, str], Counter[str]] = {}
    for run in results:
        if run.kind == Kind.SEARCH:
            counts.setdefault((run.score, run.method), Counter()).update(_ended(run))
    rows = [(*where, *(found[name] for name in names)) for where, found in sorted(counts.items())]
    note = (
        "No final held: none of its fastest kernels was confirmed, and none counts. Faults and unfinished runs "
        "count in no other table. Exhausted, whatever else became of the run: a limit on tokens or money came before "
        "the last attempt, and the run counts with what it has."
    )
    columns = {"score": "text", "method": "text", **dict.fromkeys(names, "count")}
    return Table("endings", "How the searches ended", columns, rows, note)


def degenerate_table(results: Sequence[RunResult]) -> Table:
    """The tasks whose check accepts answers that compute nothing."""
    found = {(run.task, run.score): run.degenerate for run in results if run.degenerate}
    rows = [(*where, why) for where, why in sorted(found.items())]
    columns = {"task": "text", "score": "text", "why": "text"}
    return Table("degenerate", "Degenerate tasks, left out of the levels' own rows", columns, rows)


def broken_table(results: Sequence[RunResult]) -> Table:
    """The tasks whose own model could not be measured, so that nothing could be compared with it."""
    found = {
        (run.task, run.score): " ".join(run.ending.message.split())  # a log has several lines
        for run in results
        if run.ending is not None and run.ending.reason == BROKEN_TASK
    }
    rows = [(*where, why) for where, why in sorted(found.items())]
    columns = {"task": "text", "score": "text", "why": "text"}
    note = "Their runs count in no other table but that of endings. The next stark bench tries them again."
    return Table("broken", "Tasks that do not work here", columns, rows, note)


def baselines_table(results: Sequence[RunResult]) -> Table:
    """The baselines that some task has no time of, so that nothing is compared with them there."""
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
    note = "Nothing is compared with these: the columns against such a baseline go over fewer runs, and say so."
    return Table("baselines", "Baselines without a time", columns, rows, note)


def time_table(groups: Sequence[Group]) -> Table:
    """Where the time went."""
    columns = {
        **WHERE,
        "runs": "count",
        "hours evaluating": "hours",
        "hours waiting for models": "hours",
        "hours searching": "hours",
    }
    rows = [
        (
            *each.where,
            len(each.runs),
            sum(run.evaluation_s for run in each.runs) / HOUR_S,
            sum(one.duration_s for one in _usages(each, Role)) / HOUR_S,
            sum(run.wall_s for run in each.runs) / HOUR_S or None,
        )
        for each in groups
    ]
    note = (
        "Evaluating: candidates and finals; the reference of a task is judged once for all runs and counts nowhere. "
        "Runs beside each other wait for each other."
    )
    return Table("time", "Time, summed over runs", columns, rows, note)


def _usages(each: Group, roles: Iterable[Role]) -> list[RoleUsage]:
    return [run.usage[role] for role in roles for run in each.runs if role in run.usage]


def _together(amounts: Sequence[float | None]) -> float | None:
    """A sum, which nobody knows unless every part of it is known."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def lost_final(run: RunResult) -> bool:
    """Whether a run found kernels of which none was confirmed."""
    return run.final is not None and run.metrics is not None and not run.metrics.success


def _ended(run: RunResult) -> list[str]:
    """Every column that a run counts in: the one that says what became of it, and those about its budget."""
    end = became(run)
    exhausted = run.complete and run.ending is not None and meaning(run.ending.reason).startswith("budget")
    if not exhausted:
        return [end]
    return [end, EXHAUSTED, EXHAUSTED_SOLVED] if end == "solved" else [end, EXHAUSTED]


def became(run: RunResult) -> str:
    """What came of a search, in a word or two; of what was only judged alike."""
    reason = run.ending.reason if run.ending else ""
    named = {DEGENERATE_TASK: "degenerate task", BROKEN_TASK: "task does not work here", FAULT: "fault"}
    if reason in named:
        return named[reason]
    if not run.complete:
        return UNFINISHED
    if run.metrics is not None and run.metrics.success:
        return "solved"
    return LOST if lost_final(run) else "no correct kernel"
