"""What a reader of a report has to know before its first table: by whom, by what and with how many attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stark.analysis import published
from stark.analysis.groups import Group, Key, group
from stark.analysis.results import RunResult
from stark.core.records import Kind
from stark.models.open import describe
from stark.report.cost_tables import lost_final

LISTED = 20  # tasks that are named in a sentence


def facts_of(results: Sequence[RunResult]) -> list[str]:
    """What a reader has to know before the first table."""
    scores = " and ".join(sorted({run.score for run in results}))
    devices = " and ".join(sorted({run.device for run in results}))
    complete = sum(run.complete for run in results)
    return [
        f"{complete} of {len(results)} runs are complete. Score: {scores}. Device: {devices}.",
        f"Chat models: {models_of(results)}.",
        timing_of(results),
        *missing_of(results),
        *budgets_of(results),
        *coverage_of(results),
        f"The paper's rows: A100 40 GB, Claude Sonnet 4, {published.B} attempts, KernelBench's protocol of its time.",
    ]


def models_of(results: Sequence[RunResult]) -> str:
    """Who was asked in these runs, so that nobody takes what is none for an LLM."""
    return ", ".join(sorted({describe(name) for run in results for name in run.models})) or "none was asked"


def timing_of(results: Sequence[RunResult]) -> str:
    """What success and speed were measured by, so that nobody takes a search's luckiest time for a final."""
    counted = [
        run for run in results if run.complete and run.kind != Kind.RESCORED
    ]  # whose winners are those of searches
    solved = [run.metrics for run in counted if run.metrics and run.metrics.success]
    in_turns, lost = sum(one.in_turns for one in solved), sum(map(lost_final, counted))
    parts = [f"Success and speed-ups are those of finals, timed in turns with eager, for {in_turns} winners"]
    if len(solved) > in_turns:
        parts.append(f"{len(solved) - in_turns} had none and count with the best time of the search, partly luck")
    if lost:
        parts.append(f"{lost} runs had kernels of which none held in its final, and count as failed")
    return "; ".join(parts) + "."


def missing_of(results: Sequence[RunResult]) -> list[str]:
    """The tasks another tool made no kernel for."""
    found: dict[str, list[str]] = {}
    for run in results:
        if run.complete and run.missing and run.task not in found.setdefault(run.method, []):
            found[run.method].append(run.task)
    return [
        f"{method} has no kernel for {len(tasks)} tasks, which count as failed and in no rate over attempts: "
        f"{', '.join(tasks[:LISTED])}{f' and {len(tasks) - LISTED} more' if len(tasks) > LISTED else ''}."
        for method, tasks in found.items()
    ]


def budgets_of(results: Sequence[RunResult]) -> list[str]:
    """How many attempts the runs had, without which no success means anything."""
    groups = group(results)
    numbers = sorted({number for each in groups for number in each.allowed})
    if not numbers:
        return []
    return [f"Attempts per run (B): {', '.join(map(str, numbers))}. {budgets_differ(groups)}".rstrip()]


def budgets_differ(groups: Sequence[Group]) -> str:
    """A warning where the runs of a report had unlike chances; nothing where they had the same."""
    found = {number for each in groups for number in each.allowed}
    if len(found) < 2:
        return ""
    return f"Warning: runs with unlike budgets, from {min(found)} to {max(found)} attempts, are not comparable."


def coverage_of(results: Sequence[RunResult]) -> list[str]:
    """A warning for every level whose methods do not count on the same tasks and seeds, as in half a grid."""
    found: dict[tuple[str, str], dict[str, set[Key]]] = {}
    for run in results:
        level = "the own tasks" if run.level is None else f"level {run.level}"
        counted = found.setdefault((level, run.score), {}).setdefault(run.method, set())
        if run.complete:
            counted.add((run.task, run.seed))
    return [
        f"Warning: the methods on {level} by {score} have not the same tasks and seeds complete, so that their rows "
        f"are not comparable: {_counts(methods)}; {len(set.intersection(*methods.values()))} in common."
        for (level, score), methods in sorted(found.items())
        if len(set(map(frozenset, methods.values()))) > 1
    ]


def _counts(methods: Mapping[str, set[Key]]) -> str:
    return ", ".join(f"{method} {len(keys)}" for method, keys in sorted(methods.items()))
