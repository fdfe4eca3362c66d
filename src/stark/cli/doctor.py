"""Tries everything a run needs: the machine that evaluates, the folder of runs, the chat models."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from stark.cli.options import (
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
from stark.core.chat import Message, ReplyForm
from stark.core.errors import StarkError
from stark.core.settings import EvaluationSettings, RoleSettings, Settings
from stark.core.tree import Role
from stark.models.open import describe, is_provider, open_model
from stark.run.assembly import versions
from stark.run.methods import find_method
from stark_worker.processes.environment import INHERITED, PACKAGES
from stark_worker.protocol.codec import from_json
from stark_worker.protocol.findings import Finding, State

FREE_BYTES = 2**30


REPLY_TOKENS = 256  # a model that reasons needs some before it says a word


REPLY_S = 60.0


_OF_THE_WORKER = (*INHERITED, "HOME", "TMPDIR", "XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES")  # and never a key


Begin = Callable[[str], None]


def examine(settings: Settings, runs: Path, begin: Begin) -> Iterator[Finding]:
    """Every finding as it comes. ``begin`` is told what is tried next."""
    yield Finding("versions", State.OK, ", ".join(f"{name} {number}" for name, number in versions().items()))
    yield _writable(runs)
    yield from _models(settings, begin)
    if settings.evaluation.evaluator == "local":
        yield from _worker(settings.evaluation, begin)
    elif settings.evaluation.evaluator == "folder":
        yield _served(settings.evaluation)


def _writable(runs: Path) -> Finding:
    """Whether a run can be stored; a folder that is yet to be made lies in one that is there."""
    there = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
    fix = "Name another folder with --run."
    try:
        with tempfile.TemporaryFile(dir=there):
            free = shutil.disk_usage(there).free
    except OSError as error:
        return Finding("folder of runs", State.MISSING, f"{there} cannot be written: {error.strerror}", fix)
    told = f"{runs} can be written, {free / 2**30:.1f} GB free"
    return Finding("folder of runs", State.OK if free >= FREE_BYTES else State.MISSING, told, fix * (free < FREE_BYTES))


def _models(settings: Settings, begin: Begin) -> Iterator[Finding]:
    """One cheap call to each model that the method's roles use."""
    wanted: dict[tuple[str, str | None, str | None], RoleSettings] = {}
    for role in find_method(settings.method).roles:
        chosen: RoleSettings = getattr(settings.roles, role)
        wanted.setdefault((chosen.model, chosen.base_url, chosen.api_key_env), chosen)
    for chosen in wanted.values():
        begin(f"the model {chosen.model}")
        yield _answers(chosen)


def _answers(chosen: RoleSettings) -> Finding:
    name = f"model {chosen.model}"
    if not is_provider(chosen):
        return Finding(name, State.NOT_NEEDED, f"nobody to call: {describe(chosen.model)}")
    brief = {"max_output_tokens": REPLY_TOKENS, "timeout_s": REPLY_S, "retries": 0, "output": "text"}
    try:
        model = open_model(Role.PLAN, chosen.model_copy(update=brief))
        messages = [Message("user", "Say: ready")]
        reply = asyncio.run(model.reply(messages, ReplyForm("ready", "Says that it is ready.", {"word": "ready"})))
    except StarkError as error:
        return Finding(name, State.MISSING, error.message, error.next_step)
    cost = "" if reply.cost_usd is None else f" for ${reply.cost_usd:.5f}"
    return Finding(name, State.OK, f"answered with {reply.usage.output_tokens} tokens{cost}")


def _worker(settings: EvaluationSettings, begin: Begin) -> Iterator[Finding]:
    """What the worker finds out about this machine, in a process of its own: torch is never imported here."""
    command = [sys.executable, "-m", "stark_worker", "doctor", "--json", "--target", settings.target]
    command += ["--allow-weak-sandbox"] if settings.allow_weak_sandbox else []
    environment = {name: os.environ[name] for name in _OF_THE_WORKER if name in os.environ} | {"PYTHONPATH": PACKAGES}
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            last = line.strip() or last
            if line.startswith("{"):
                yield from_json(Finding, line)
            elif line.startswith("tries "):
                begin(line.removeprefix("tries ").removesuffix(" ...\n"))
    if process.returncode not in (0, 1):
        yield Finding("worker", State.MISSING, f"it ended early: {last}", "Run: python -m stark_worker doctor")


def _served(settings: EvaluationSettings) -> Finding:
    """Whether a worker elsewhere has served the folder; what it needs is tried there."""
    folder = Path(settings.folder or "")
    if settings.folder is None:
        return Finding("worker", State.MISSING, "no folder is named", "Name one with --set evaluation.folder=DIR.")
    if not (folder / "device.json").exists():
        fix = f"python -m stark_worker serve {folder} --target {settings.target}"
        return Finding("worker", State.MISSING, f"nobody has served {folder}", fix)
    trying = f"python -m stark_worker doctor --target {settings.target}"
    return Finding("worker", State.OK, f"{folder} was served; try that machine with {trying}")


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
    from stark.cli.terminal.doctor import Examination
    from stark.run.config import load_settings
    from stark_worker.protocol.findings import can_work

    options = {
        **judging(None, None, target, evaluator, allow_weak_sandbox),
        "roles": {"model": model, "base_url": base_url, "api_key_env": api_key_env},
    }
    settings = load_settings(config, sets or [], given(options))
    with Examination(as_json) as examination:
        found = list(map(examination.tell, examine(settings, runs, examination.begin)))
    if not can_work(found):
        raise typer.Exit(LACKING)


COMMANDS = (doctor,)
