"""The command ``stark verify``: checks the claim of a bundle."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from stark.cli.exit_codes import ExitCode
from stark.cli.options import AllowWeakSandbox, Assignments, EvaluatorName, SettingsFile, drop_unset


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A bundle that stark export --bundle wrote.")],
    task: Annotated[
        Path | None, typer.Option("--task", metavar="MY_TASK.py", help="Judge against this task, not the bundle's.")
    ] = None,
    evaluator: EvaluatorName = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    config: SettingsFile = None,
    sets: Assignments = None,
) -> None:
    """Check that a bundle is unchanged, and judge its kernel again on this machine.

    Exit code 0: the claim holds here, 3: it does not, 4: undecided.
    """
    from stark.capture.files import load_task
    from stark.cli.terminal import verify
    from stark.core.task import Task
    from stark.evaluation.bundle import manifest_digest, read_bundle, unpack
    from stark.evaluation.verification import Verdict, Verification
    from stark.run.judge import judge_as_winner
    from stark.run.settings_loader import load_settings

    data = read_bundle(file)
    bundle = unpack(data)
    own = load_task(task) if task else None
    options = drop_unset({"evaluation": {"evaluator": evaluator, "allow_weak_sandbox": allow_weak_sandbox}})
    evaluation = load_settings(config, sets or [], options).evaluation
    settings = evaluation.model_copy(update=bundle.claim.rules())
    verify.show_intact(manifest_digest(data), bundle.claim.facts())
    judged = own or Task(bundle.claim.task_name, bundle.task_source)
    device, final = asyncio.run(judge_as_winner(judged, bundle.kernel_source, settings, untrusted_task=own is None))
    verification = Verification(bundle, final, device)
    notes = [verify.UNTRUSTED_TASK_NOTE] if own is None else []
    notes += [verify.OTHER_TASK_NOTE] if own and own.source != bundle.task_source else []
    verify.show_verification(verification, notes)
    if verification.verdict is not Verdict.HOLDS:
        unresolved = verification.verdict is Verdict.UNRESOLVED
        raise typer.Exit(ExitCode.UNRESOLVED if unresolved else ExitCode.NOT_IMPROVED)
