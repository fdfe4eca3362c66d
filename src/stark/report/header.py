"""The header of a report: chat models, scores, devices, budgets and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stark.analysis import published
from stark.analysis.groups import Group, Level, TaskSeed, group_runs
from stark.analysis.results import RunResult
from stark.core.records import Kind
from stark.models.open import describe_model
from stark.report.cost_tables import is_not_confirmed

MAX_NAMED_TASKS = 20  # tasks that are named in a sentence


def header_facts(results: Sequence[RunResult]) -> list[str]:
    """The sentences before the first table."""
    scores = " and ".join(sorted({run.score for run in results}))
    devices = " and ".join(sorted({run.device for run in results}))
    complete = sum(run.complete for run in results)
    return [
        f"{complete} of {len(results)} runs are complete. Score: {scores}. Device: {devices}.",
        f"Chat models: {format_models(results)}.",
        describe_timing(results),
        *describe_missing(results),
        *describe_budgets(results),
        *warn_of_coverage(results),
        f"The paper's rows: A100 40 GB, Claude Sonnet 4, {published.ATTEMPTS} attempts, KernelBench at that time.",
    ]


def format_models(results: Sequence[RunResult]) -> str:
    """List the models that were called, and mark those that are no LLM."""
    return ", ".join(sorted({describe_model(name) for run in results for name in run.models})) or "none"


def describe_timing(results: Sequence[RunResult]) -> str:
    """State how many winners were confirmed in a final check, and how many have only the time of the search."""
    counted = [run for run in results if run.complete and run.kind != Kind.RESCORED]  # rescored: the same winners
    solved = [run.metrics for run in counted if run.metrics and run.metrics.success]
    timed_in_turns, lost = sum(one.timed_in_turns for one in solved), sum(map(is_not_confirmed, counted))
    parts = [f"{timed_in_turns} winners passed the final check, timed in turns with eager"]
    if len(solved) > timed_in_turns:
        parts.append(f"{len(solved) - timed_in_turns} had no final check and count with the search's best time")
    if lost:
        parts.append(f"{lost} runs had a winner that was not confirmed, and count as failed")
    return "; ".join(parts) + "."


def describe_missing(results: Sequence[RunResult]) -> list[str]:
    """Name the tasks for which another tool made no kernel."""
    found: dict[str, list[str]] = {}
    for run in results:
        if run.complete and run.is_missing and run.task not in found.setdefault(run.method, []):
            found[run.method].append(run.task)
    return [
        f"{method} has no kernel for {len(tasks)} tasks, which count as failed but in no rate over attempts: "
        f"{_format_tasks(tasks)}."
        for method, tasks in found.items()
    ]


def describe_budgets(results: Sequence[RunResult]) -> list[str]:
    """State the attempts per run."""
    groups = group_runs(results)
    numbers = sorted({number for each in groups for number in each.allowed_attempts})
    if not numbers:
        return []
    return [f"Attempts per run (B): {', '.join(map(str, numbers))}. {warn_of_budgets(groups)}".rstrip()]


def warn_of_budgets(groups: Sequence[Group]) -> str:
    """Warn if the runs had different budgets."""
    found = {number for each in groups for number in each.allowed_attempts}
    if len(found) < 2:
        return ""
    return f"Warning: runs with different budgets, from {min(found)} to {max(found)} attempts, are not comparable."


def warn_of_coverage(results: Sequence[RunResult]) -> list[str]:
    """Warn of every level whose methods are not complete on the same tasks and seeds."""
    found: dict[tuple[str, str], dict[str, set[TaskSeed]]] = {}
    for run in results:
        counted = found.setdefault((Level(run.level).title, run.score), {}).setdefault(run.method, set())
        if run.complete:
            counted.add((run.task, run.seed))
    return [
        f"Warning: the methods on {level} by {score} are not complete on the same tasks and seeds, so their rows are "
        f"not comparable: {_format_counts(methods)}; {len(set.intersection(*methods.values()))} in common."
        for (level, score), methods in sorted(found.items())
        if len(set(map(frozenset, methods.values()))) > 1
    ]


def _format_tasks(tasks: Sequence[str]) -> str:
    named = ", ".join(tasks[:MAX_NAMED_TASKS])
    more = len(tasks) - MAX_NAMED_TASKS
    return f"{named} and {more} more" if more > 0 else named


def _format_counts(methods: Mapping[str, set[TaskSeed]]) -> str:
    return ", ".join(f"{method} {len(keys)}" for method, keys in sorted(methods.items()))
