"""The commands that measure without a search: ``stark judge``, ``stark baseline`` and ``stark bound``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from stark.cli.exit_codes import ExitCode
from stark.cli.options import (
    AllowWeakSandbox,
    Assignments,
    DeviceKind,
    EvaluatorName,
    PrecisionName,
    RayAddress,
    ScoreName,
    SettingsFile,
    TargetName,
    TaskFile,
    drop_unset,
    evaluation_options,
)
from stark.cli.terminal.bound import show_bound
from stark.cli.terminal.progress import BaselineProgress
from stark.cli.terminal.run import show_final, show_verdict
from stark.cli.terminal.screen import show_bundle, show_line
from stark.core.errors import UsageError
from stark_worker.protocol.request import check_variants


def judge(
    task: TaskFile,
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE.py", help="File that defines ModelNew.")],
    precision: PrecisionName = None,
    score: ScoreName = None,
    target: TargetName = None,
    evaluator: EvaluatorName = None,
    ray_address: RayAddress = None,
    device_kind: DeviceKind = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle", metavar="FILE", help="Judge as the final check of a run does; write the evidence here."
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Judge as the final check of a run does; write a drop-in here."),
    ] = None,
    variants: Annotated[
        Path | None,
        typer.Option(
            "--variants",
            metavar="FILE",
            help="JSON list of other values for the kernel's CONSTANTS; the best is judged.",
        ),
    ] = None,
    config: SettingsFile = None,
    sets: Assignments = None,
) -> None:
    """Check and time one kernel. Exit code 0: it is correct, 3: it is not."""
    from stark.capture.files import load_task
    from stark.core.task import load_candidate
    from stark.run.judge import judge as judge_candidate
    from stark.run.settings_loader import load_settings

    options = drop_unset(
        evaluation_options(precision, score, target, evaluator, allow_weak_sandbox, ray_address, device_kind)
    )
    settings = load_settings(config, sets or [], options).evaluation
    if bundle is not None or export is not None:
        if as_json or variants:
            raise UsageError("--json and --variants cannot be combined with --bundle or --export.", "Leave them out.")
        _judge_as_winner(load_task(task), load_candidate(candidate), settings, bundle, export)
        return
    given = read_variants(variants) if variants else []
    reference, report = asyncio.run(
        judge_candidate(load_task(task), load_candidate(candidate), settings, variants=given)
    )
    show_verdict(report, reference, as_json)
    if report.timing is None:
        raise typer.Exit(ExitCode.NOT_IMPROVED)


def read_variants(file: Path) -> list[dict[str, int]]:
    """Return the variants in a file; raise ``UsageError`` if it holds none."""
    try:
        variants = json.loads(file.read_text(encoding="utf-8"))
        if not variants or not all(type(value) is int for each in variants for value in each.values()):
            raise ValueError("no variant, or a value that is no whole number")
        check_variants(variants)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{file} holds no variants: {error}.", 'Write a list of dictionaries: [{"BLOCK": 64}, {"BLOCK": 128}]'
        ) from error
    return list(variants)


def _judge_as_winner(task: Any, candidate: str, settings: Any, bundle: Path | None, export: Path | None) -> None:
    from stark.report import exports
    from stark.run.assembly import versions
    from stark.run.judge import judge_as_winner

    device, final = asyncio.run(judge_as_winner(task, candidate, settings))
    show_final(final, "The kernel")
    if not final.holds:
        show_line(final.report.log)
        raise typer.Exit(ExitCode.NOT_IMPROVED)
    if bundle is not None:
        evidence = exports.bundle_of_kernel(task, candidate, final, settings, (device, versions()))
        show_bundle(bundle, exports.write_bundle(bundle, evidence))
    if export is not None:
        exports.write_drop_in(export, final, f"{task.name}, on {device.name}")
        show_line(f"{export} holds a ModelNew that takes the place of Model.")


def baseline(
    task: TaskFile,
    precision: PrecisionName = None,
    target: TargetName = None,
    evaluator: EvaluatorName = None,
    ray_address: RayAddress = None,
    device_kind: DeviceKind = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    config: SettingsFile = None,
    sets: Assignments = None,
    fresh: Annotated[bool, typer.Option(help="Ignore baselines that were measured before.")] = False,
) -> None:
    """Time a task under PyTorch eager, torch.compile, and torch.compile max-autotune."""
    from stark.capture.files import load_task
    from stark.run.judge import measure_baselines
    from stark.run.settings_loader import load_settings

    options = drop_unset(
        evaluation_options(precision, None, target, evaluator, allow_weak_sandbox, ray_address, device_kind)
    )
    settings = load_settings(config, sets or [], options).evaluation
    asyncio.run(measure_baselines(load_task(task), settings, BaselineProgress(), fresh=fresh))


def bound(
    task: TaskFile,
    precision: PrecisionName = None,
    target: TargetName = None,
    evaluator: EvaluatorName = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the bound as JSON.")] = False,
    config: SettingsFile = None,
    sets: Assignments = None,
    fresh: Annotated[bool, typer.Option(help="Ignore a measurement that was made before.")] = False,
) -> None:
    """Show the speed of light of a task: the least time that this device needs for it, and why."""
    from stark.capture.files import load_task
    from stark.run.judge import measure_bound
    from stark.run.settings_loader import load_settings

    options = drop_unset(evaluation_options(precision, None, target, evaluator, allow_weak_sandbox))
    settings = load_settings(config, sets or [], options).evaluation
    show_bound(asyncio.run(measure_bound(load_task(task), settings, fresh)), as_json)
