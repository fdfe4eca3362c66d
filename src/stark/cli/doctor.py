"""The command ``stark doctor``: shows what a run needs and what is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from stark.cli.exit_codes import ExitCode
from stark.cli.options import (
    AllowWeakSandbox,
    ApiKeyEnv,
    Assignments,
    BaseUrl,
    EvaluatorName,
    ModelName,
    SettingsFile,
    TargetName,
    drop_unset,
    evaluation_options,
)


def doctor(
    target: TargetName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    evaluator: EvaluatorName = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder of runs.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    config: SettingsFile = None,
    sets: Assignments = None,
) -> None:
    """Try everything that a run needs, and name fixes. Exit code 0: a run can work, 1: it cannot."""
    from stark.cli.terminal.doctor import Examination
    from stark.doctor.examination import examine
    from stark.run.settings_loader import load_settings
    from stark_worker.protocol.findings import Finding, can_work

    options = {
        **evaluation_options(None, None, target, evaluator, allow_weak_sandbox),
        "roles": {"model": model, "base_url": base_url, "api_key_env": api_key_env},
    }
    settings = load_settings(config, sets or [], drop_unset(options))

    async def show_findings() -> list[Finding]:
        with Examination(as_json) as examination:
            return [examination.add(finding) async for finding in examine(settings, runs, examination.begin)]

    found = asyncio.run(show_findings())
    if not can_work(found):
        raise typer.Exit(ExitCode.MISSING)


COMMANDS = (doctor,)
