"""The command that checks other people's claims."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from stark.cli.options import AllowWeakSandbox, Assignments, EvaluatorName, SettingsFile, given

NOT_CONFIRMED, UNRESOLVED = 3, 4


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A bundle, as stark export --bundle writes it.")],
    task: Annotated[
        Path | None, typer.Option("--task", metavar="MY_TASK.py", help="Judge against this task, not the bundle's.")
    ] = None,
    evaluator: EvaluatorName = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    config: SettingsFile = None,
    sets: Assignments = None,
) -> None:
    """Check that a bundle is what it was, and judge its kernel anew on this machine.

    Exit code 0: the claim holds here, 3: it does not, 4: that cannot be told.
    """
    from stark.cli.terminal import verify
    from stark.core.task import Task, load_task
    from stark.evaluation.bundle import digest, read, unpack
    from stark.evaluation.verification import Verdict, Verification
    from stark.run.config import load_settings
    from stark.run.judge import judge_finally

    data = read(file)
    bundle = unpack(data)
    own = load_task(task) if task else None
    options = given({"evaluation": {"evaluator": evaluator, "allow_weak_sandbox": allow_weak_sandbox}})
    evaluation = load_settings(config, sets or [], options).evaluation
    settings = evaluation.model_copy(update=bundle.claim.rules())
    verify.show_whole(digest(data), bundle.claim.facts())
    judged = own or Task(bundle.claim.task_name, bundle.task_source)
    device, final = asyncio.run(judge_finally(judged, bundle.kernel_source, settings, stranger=own is None))
    verification = Verification(bundle, final, device)
    notes = [verify.STRANGER] if own is None else []
    notes += [verify.OTHER_TASK] if own and own.source != bundle.task_source else []
    verify.show_verification(verification, notes)
    if verification.verdict is not Verdict.HOLDS:
        raise typer.Exit(UNRESOLVED if verification.verdict is Verdict.UNRESOLVED else NOT_CONFIRMED)


COMMANDS = (verify,)
