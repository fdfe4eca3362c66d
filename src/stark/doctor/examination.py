"""Tries the evaluating machine, the folder of runs and the chat models."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from stark.core.chat import Message, ReplyForm
from stark.core.errors import StarkError
from stark.core.settings import EvaluationSettings, RoleSettings, Settings
from stark.core.tree import Role
from stark_worker.processes.environment import INHERITED_VARIABLES, PACKAGE_ROOT
from stark_worker.protocol.findings import Begun, Finding, State, parse_line

MIN_FREE_BYTES = 2**30
MAX_LINE_BYTES = 2**20  # of the worker's output
REPLY_TOKENS = 256  # a reasoning model needs some before its first word
REPLY_S = 60.0
WORKER_VARIABLES = (*INHERITED_VARIABLES, "HOME", "TMPDIR", "XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES")  # never a key

OnStep = Callable[[str], None]


async def examine(settings: Settings, runs: Path, on_step: OnStep, call_models: bool = True) -> AsyncIterator[Finding]:
    """Yield every finding as it is made. ``on_step`` receives the name of each slow step first.

    ``call_models`` makes one cheap call to each chat model.
    """
    from stark.run.assembly import versions

    yield Finding("versions", State.OK, ", ".join(f"{name} {number}" for name, number in versions().items()))
    yield _try_folder(runs)
    if call_models:
        async for finding in _try_models(settings, on_step):
            yield finding
    if settings.evaluation.evaluator == "local":
        async for finding in _try_worker(settings.evaluation, on_step):
            yield finding
    elif settings.evaluation.evaluator == "folder":
        yield _try_served_folder(settings.evaluation)


def _try_folder(runs: Path) -> Finding:
    """Try to write into the folder of runs, or into the nearest parent that exists."""
    there = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
    fix = "Choose another folder with --run DIR."
    try:
        with tempfile.TemporaryFile(dir=there):
            free = shutil.disk_usage(there).free
    except OSError as error:
        return Finding("folder of runs", State.MISSING, f"{there} cannot be written: {error.strerror}", fix)
    detail = f"{runs} can be written, {free / 2**30:.1f} GB free"
    if free < MIN_FREE_BYTES:
        return Finding("folder of runs", State.MISSING, detail, fix)
    return Finding("folder of runs", State.OK, detail)


async def _try_models(settings: Settings, on_step: OnStep) -> AsyncIterator[Finding]:
    """Make one cheap call to each model of the method's roles."""
    from stark.run.methods import find_method

    wanted: dict[tuple[str, str | None, str | None], RoleSettings] = {}
    for role in find_method(settings.method).roles:
        chosen: RoleSettings = getattr(settings.roles, role)
        wanted.setdefault((chosen.model, chosen.base_url, chosen.api_key_env), chosen)
    for chosen in wanted.values():
        on_step(f"the model {chosen.model}")
        yield await _try_model(chosen)


async def _try_model(chosen: RoleSettings) -> Finding:
    from stark.models.open import describe_model, is_provider, open_model

    name = f"model {chosen.model}"
    if not is_provider(chosen):
        return Finding(name, State.NOT_NEEDED, f"no provider to call: {describe_model(chosen.model)}")
    brief = {"max_output_tokens": REPLY_TOKENS, "timeout_s": REPLY_S, "retries": 0, "output": "text"}
    try:
        model = open_model(Role.PLAN, chosen.model_copy(update=brief))
        messages = [Message("user", "Say: ready")]
        reply = await model.reply(messages, ReplyForm("ready", "Says that it is ready.", {"word": "ready"}))
    except StarkError as error:
        return Finding(name, State.MISSING, error.message, error.next_step)
    cost = "" if reply.cost_usd is None else f" for ${reply.cost_usd:.5f}"
    return Finding(name, State.OK, f"answered with {reply.usage.output_tokens} tokens{cost}")


async def _try_worker(settings: EvaluationSettings, on_step: OnStep) -> AsyncIterator[Finding]:
    """Yield the worker's findings about this machine. It runs in its own process, because it imports torch."""
    words = ["-m", "stark_worker", "doctor", "--json", "--target", settings.target]
    words += ["--allow-weak-sandbox"] if settings.allow_weak_sandbox else []
    environment = {name: os.environ[name] for name in WORKER_VARIABLES if name in os.environ}
    environment["PYTHONPATH"] = PACKAGE_ROOT
    last = ""
    async with _process(words, environment) as process:
        assert process.stdout is not None
        async for raw in process.stdout:
            line = raw.decode("utf-8", "replace")
            last = line.strip() or last
            match parse_line(line):
                case Finding() as finding:
                    yield finding
                case Begun(name):
                    last = f"tries {name} ..."
                    on_step(name)
    if process.returncode not in (0, 1):
        yield Finding("worker", State.MISSING, f"it ended early: {last}", "Type: python -m stark_worker doctor")


@asynccontextmanager
async def _process(words: list[str], environment: dict[str, str]) -> AsyncIterator[Process]:
    """Run Python with these words. Wait for its end, or end it if the caller is cancelled."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        limit=MAX_LINE_BYTES,
    )
    try:
        yield process
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()  # what it started ends with it
        raise
    finally:
        await process.wait()


def _try_served_folder(settings: EvaluationSettings) -> Finding:
    """Look for a worker that has served the folder. Its machine is tried by its own doctor."""
    folder = Path(settings.folder or "")
    if settings.folder is None:
        return Finding("worker", State.MISSING, "no folder is named", "Name one with --set evaluation.folder=DIR.")
    if not (folder / "device.json").exists():
        fix = f"python -m stark_worker serve {folder} --target {settings.target}"
        return Finding("worker", State.MISSING, f"no worker has served {folder}", fix)
    command = f"python -m stark_worker doctor --target {settings.target}"
    return Finding("worker", State.OK, f"{folder} was served; to try that machine, type there: {command}")
