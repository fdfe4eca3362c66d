"""Has candidates judged elsewhere: requests go into a folder, a worker on another machine answers through it.

    host      stark optimize task.py --evaluator folder --set evaluation.folder=/shared/stark --target cuda
    worker    python -m stark_worker serve /shared/stark

Needs nothing but the folder, and survives a restart of either side: a request is named by its content, so a host that
comes back finds the answer that came meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from stark.errors import EvaluatorError, TaskError, UsageError
from stark.settings import EvaluationSettings
from stark_worker.faults import SandboxTooWeak, TaskFault
from stark_worker.folder import PARTS, write_whole
from stark_worker.protocol import DeviceFacts, EvalReport, EvalRequest, ProtocolError, from_json, to_json

POLL_S = 0.1


class FolderEvaluator:
    """Waits for a worker that serves the folder."""

    slots = 4  # so that the worker always finds a request waiting

    def __init__(self, settings: EvaluationSettings) -> None:
        if settings.folder is None:
            raise UsageError("The folder evaluator needs a folder.", "Name one with --set evaluation.folder=DIR.")
        self._folder = Path(settings.folder)
        self._patience_s = settings.patience_s
        self._retries = settings.retries

    async def __aenter__(self) -> Self:
        try:
            for part in PARTS:
                (self._folder / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EvaluatorError(
                f"The folder {self._folder} cannot be used: {error.strerror}.", "Choose a folder both sides can write."
            ) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Requests stay: the worker may go on while the host is away."""

    async def device(self) -> DeviceFacts:
        """What the worker said it is."""
        return from_json(DeviceFacts, await self._wait_for(self._folder / "device.json"))

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        """One report, however long a living worker takes."""
        text = to_json(request)
        name = f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
        message = ""
        for _ in range(self._retries + 1):
            answer = self._folder / "answers" / name
            if not answer.exists() and not (self._folder / "working" / name).exists():
                write_whole(self._folder / "requests" / name, text)
            content = json.loads(await self._wait_for(answer))
            answer.unlink(missing_ok=True)
            if "report" in content:
                return self._report(content["report"])
            message = str(content.get("message"))
            if content.get("fault") == TaskFault.kind:
                raise TaskError(f"The task does not work by itself. {message}", "Fix the task file.")
            if content.get("fault") == SandboxTooWeak.kind:
                break
        raise EvaluatorError(
            f"The worker behind {self._folder} could not evaluate, which is no fault of the candidate: {message}",
            "Put that right there and resume the run.",
        )

    def _report(self, content: object) -> EvalReport:
        try:
            return from_json(EvalReport, json.dumps(content))
        except ProtocolError as error:
            raise EvaluatorError(
                f"The worker's report cannot be read: {error}.", "Run the same version on both sides."
            ) from error

    async def _wait_for(self, path: Path) -> str:
        """The content of a file once it is there. Gives up when no worker has shown a sign of life for long."""
        alive, last = time.monotonic(), self._heartbeat()
        while not path.exists():
            if (beat := self._heartbeat()) != last:
                alive, last = time.monotonic(), beat
            if time.monotonic() - alive > self._patience_s:
                raise EvaluatorError(
                    f"No worker has served {self._folder} for {self._patience_s:.0f} s.",
                    f"Start one with: python -m stark_worker serve {self._folder} and resume the run.",
                )
            await asyncio.sleep(POLL_S)
        return path.read_text(encoding="utf-8")

    def _heartbeat(self) -> str:
        try:
            return (self._folder / "heartbeat").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
