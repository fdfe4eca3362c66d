"""TODO."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from stark.cli.optimize import NOT_IMPROVED
from stark.cli.options import (
    AllowWeakSandbox,
    Assignments,
    EvaluatorName,
    PrecisionName,
    ScoreName,
    SettingsFile,
    TargetName,
    TaskFile,
    given,
    judging,
)
from stark.cli.terminal.progress import Baselines
from stark.cli.terminal.run import show_final, show_verdict
from stark.cli.terminal.screen import say, show_bundle
from stark.core.errors import UsageError


def judge(
    task: TaskFile,
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE.py", help="File that defines ModelNew.")],
    precision: PrecisionName = None,
    score: ScoreName = None,
    target: TargetName = None,
    evaluator: EvaluatorName = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", metavar="FILE", help="Judge as the final of a run does, and write the evidence here."),
    ] = None,
    config: SettingsFile = None,
    sets: Assignments = None,
) -> None:
    """Check and time one kernel against a task. Exit code 0: it is correct, 3: it is not."""
    from stark.core.task import load_candidate, load_task
    from stark.run.config import load_settings
    from stark.run.judge import judge as judge_candidate

    options = given(judging(precision, score, target, evaluator, allow_weak_sandbox))
    settings = load_settings(config, sets or [], options).evaluation
    if bundle is not None:
        if as_json:
            raise UsageError("What --bundle writes is told in words.", "Give --json or --bundle.")
        _judge_finally(load_task(task), load_candidate(candidate), settings, bundle)
        return
    reference, report = asyncio.run(judge_candidate(load_task(task), load_candidate(candidate), settings))
    show_verdict(report, reference, as_json)
    if report.timing is None:
        raise typer.Exit(NOT_IMPROVED)


def _judge_finally(task: Any, candidate: str, settings: Any, file: Path) -> None:
    from stark.report import exports
    from stark.run.assembly import versions
    from stark.run.judge import judge_finally

    device, final = asyncio.run(judge_finally(task, candidate, settings))
    show_final(final, "The kernel")
    if not final.holds:
        say(final.report.log)
        raise typer.Exit(NOT_IMPROVED)
    evidence = exports.bundle_of_kernel(task, candidate, final, settings, (device, versions()))
    show_bundle(file, exports.write_bundle(file, evidence))


def baseline(
    task: TaskFile,
    precision: PrecisionName = None,
    target: TargetName = None,
    evaluator: EvaluatorName = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    config: SettingsFile = None,
    sets: Assignments = None,
    fresh: Annotated[bool, typer.Option(help="Measure again what was measured before.")] = False,
) -> None:
    """Time a task under PyTorch eager, torch.compile, and torch.compile max-autotune."""
    from stark.core.task import load_task
    from stark.run.config import load_settings
    from stark.run.judge import measure_baselines

    options = given(judging(precision, None, target, evaluator, allow_weak_sandbox))
    settings = load_settings(config, sets or [], options).evaluation
    asyncio.run(measure_baselines(load_task(task), settings, Baselines(), fresh=fresh))


COMMANDS = (judge, baseline)
