"""The command that tries a machine out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stark.cli_options import (
    AllowWeakSandbox,
    ApiKeyEnv,
    Assignments,
    BaseUrl,
    EvaluatorName,
    ModelName,
    SettingsFile,
    TargetName,
    given,
    judging,
)

LACKING = 1


def doctor(
    target: TargetName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    evaluator: EvaluatorName = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs are to be kept.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    config: SettingsFile = None,
    sets: Assignments = None,
) -> None:
    """Try everything a run needs and say how to get what is missing. Exit code 0: a run can work, 1: it cannot."""
    from stark.config import load_settings
    from stark.doctor import examine
    from stark.view.doctor import Examination
    from stark_worker.doctor import can_work

    options = {
        **judging(None, None, target, evaluator, allow_weak_sandbox),
        "roles": {"model": model, "base_url": base_url, "api_key_env": api_key_env},
    }
    settings = load_settings(config, sets or [], given(options))
    with Examination(as_json) as examination:
        found = list(map(examination.tell, examine(settings, runs, examination.begin)))
    if not can_work(found):
        raise typer.Exit(LACKING)
