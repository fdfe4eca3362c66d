"""Captures a module for another agent: its code runs confined, in a process that ends with the call."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stark.capture.files import COMMAND, CapturedTask, captured_of, read_answer, words_of
from stark.core.errors import TaskError
from stark_worker.processes.environment import child_environment, import_root

# Nothing in the folders of the client is imported before the process is confined.
BOOT = """
import json, os, sys
from pathlib import Path
order = json.loads(sys.argv[1])
sys.path.insert(0, order["package"])
from stark_worker.sandbox.confine import ALLOW_WEAK, enter_sandbox
os.environ |= {ALLOW_WEAK: "yes"} if order["allow_weak"] else {}
enter_sandbox([Path(folder) for folder in order["folders"]])
sys.path[:0] = order["folders"]
from stark_worker.__main__ import main
sys.exit(main(["capture", *order["words"]]))
"""
MAX_ANSWER_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Place:
    """The folders that modules are imported from, and the rights of their code."""

    folders: Sequence[Path]
    is_confined: bool
    allow_weak_sandbox: bool
    deadline_s: float


async def capture_in(place: Place, name: str, inputs: Sequence[str], block: str | None = None) -> CapturedTask:
    """Capture the module that ``package.module:factory`` makes, or a block inside it."""
    words = words_of(name, inputs, block)
    work = tempfile.TemporaryDirectory(prefix="stark-capture-")
    with work as folder, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = await _run(place, words, folder, (out, err))
        texts = [_read(file) for file in (out, err)]
    return captured_of(read_answer(name, code, *texts))


async def _run(place: Place, words: Sequence[str], folder: str, outputs: tuple[IO[bytes], IO[bytes]]) -> int:
    """Return the exit code. Whatever ends the call, the process and its group end too."""
    command, environment = [*COMMAND, *words], None
    if place.is_confined:
        folders, weak = [str(each) for each in place.folders], place.allow_weak_sandbox
        order = {"package": import_root(Path(folder)), "folders": folders, "allow_weak": weak, "words": words}
        command = [sys.executable, "-I", "-B", "-c", BOOT, json.dumps(order)]
        environment = child_environment(Path(folder), {})
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder if place.is_confined else place.folders[0],
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=outputs[0],
        stderr=outputs[1],
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(place.deadline_s):
            return await process.wait()
    except TimeoutError as error:
        last = f"It took longer than {place.deadline_s:g} s."
        raise TaskError(f"{words[-1]} cannot be captured: {last}", "Capture a smaller block.") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
