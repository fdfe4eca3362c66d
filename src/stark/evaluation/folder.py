"""Lets a worker on another machine evaluate candidates: requests and answers go through a shared folder.

    host      stark optimize task.py --evaluator folder --set evaluation.folder=/shared/stark --target cuda
    worker    python -m stark_worker serve /shared/stark --target cuda

Either side may restart: a host that asks the same again finds its earlier request, or the answer to it. Hosts that
ask the same in parallel each get their own answer. All workers of a folder must have the same kind of device; a report
from another device than the first is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

from stark.core.errors import EvaluatorError, UsageError
from stark.core.settings import EvaluationSettings
from stark.core.steps import Step
from stark.evaluation.faults import TRY_AGAIN, FaultTranslator
from stark.evaluation.steps import report_step
from stark_worker.protocol.codec import ProtocolError, from_json, to_json
from stark_worker.protocol.errors import make_fault
from stark_worker.protocol.folder import ANSWERS, CLAIMS, FOLDERS, REQUESTS, STAGES, try_lock, write_atomically
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import EvalRequest
from stark_worker.scheduler.retry import judge_with_retries

POLL_S = 0.1

Record = TypeVar("Record")


class FolderEvaluator:
    """Asks the worker that serves a folder."""

    def __init__(self, settings: EvaluationSettings) -> None:
        if settings.folder is None:
            raise UsageError("The folder evaluator needs a folder.", "Name one with --set evaluation.folder=DIR.")
        self._folder = Path(settings.folder)
        self._worker_timeout_s = settings.worker_timeout_s
        self._retries = settings.retries
        self._target = settings.target
        self._device: DeviceFacts | None = None
        self._serve_command = f"python -m stark_worker serve {self._folder} --target {self._target}"
        self._faults = FaultTranslator(
            f"The worker of {self._folder}",
            f"python -m stark_worker doctor --target {self._target}",
            f"{self._serve_command} --allow-weak-sandbox",
        )

    async def __aenter__(self) -> Self:
        try:
            for part in FOLDERS:
                (self._folder / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EvaluatorError(
                f"The folder {self._folder} cannot be used: {error.strerror}.",
                "Choose a folder that both sides can write to, with --set evaluation.folder=DIR.",
            ) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave open requests in the folder: the worker may go on while the host is away."""

    async def device(self) -> DeviceFacts:
        """Return the device that the worker has written into the folder."""
        if self._device is None:
            facts = _read(DeviceFacts, await self._wait_for(self._folder / "device.json"))
            if facts.kind != self._target.device_kind:
                raise EvaluatorError(
                    f"The worker of {self._folder} evaluates on {facts.name} ({facts.kind}), but the target "
                    f"{self._target} needs a device of the kind {self._target.device_kind}.",
                    f"Start a worker on such a machine with: {self._serve_command}; or choose another --target.",
                )
            self._device = facts
        return self._device

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        """Evaluate one candidate, however long a living worker takes. Its faults are retried, then raised."""
        with self._faults.translate():
            report = await judge_with_retries(self._ask, request, self._retries)
        if report.device is not None:
            self._check_same(await self.device(), report.device)
        return report

    def _check_same(self, first: DeviceFacts, other: DeviceFacts) -> None:
        """Refuse a report from another device: its times cannot be compared."""
        if (first.kind, first.name) != (other.kind, other.name):
            raise EvaluatorError(
                f"Different devices serve {self._folder}: the run began on {first.name} ({first.kind}), and a report "
                f"came from {other.name} ({other.kind}). Their times cannot be compared.",
                f"Let only machines with {first.name} serve this folder, then {TRY_AGAIN}.",
            )

    async def _ask(self, request: EvalRequest) -> EvalReport:
        with self._claim_question(request) as asked:  # if the host is stopped, its files stay for the next one
            name = Path(asked.name).name
            if not any((self._folder / part / name).exists() for part in STAGES):
                write_atomically(self._folder / REQUESTS / name, to_json(request))
            answer = self._folder / ANSWERS / name
            text = await self._wait_for(answer, self._follow(name))
            answer.unlink(missing_ok=True)
            Path(asked.name).unlink(missing_ok=True)
        content = _parse_answer(text)
        if "report" not in content:
            raise make_fault(content.get("fault"), content.get("message"))
        return _read(EvalReport, json.dumps(content["report"]))

    def _claim_question(self, request: EvalRequest) -> IO[str]:
        """Lock the file of this question: one that a stopped host left, or a new one.

        The time below which a profile is wanted changes during a run, and does not make another question.
        """
        text = to_json(replace(request, profile_below_ms=0.0))
        folder, key = self._folder / CLAIMS, hashlib.sha256(text.encode()).hexdigest()[:32]
        for left in sorted(folder.glob(f"{key}-*.json")):
            if file := try_lock(left):
                return file
        while True:
            new = folder / f"{key}-{secrets.token_hex(8)}.json"
            new.touch(exist_ok=False)
            if file := try_lock(new):  # unless another host took it for one that was left
                return file

    def _follow(self, name: str) -> Callable[[], None]:
        """Return a function that reports the step of a request, as far as the folder shows it, when it changes."""
        last: Step | None = None

        def look() -> None:
            nonlocal last
            step = Step.WAITING if (self._folder / REQUESTS / name).exists() else Step.REMOTE
            if step is not last:
                report_step(step)
            last = step

        return look

    async def _wait_for(self, path: Path, look: Callable[[], None] = lambda: None) -> str:
        """Return the content of a file once it exists. Raise if no worker gives a sign of life in time.

        Call ``look`` at every poll.
        """
        alive, last = time.monotonic(), self._heartbeat()
        while not path.exists():
            look()
            if (beat := self._heartbeat()) != last:
                alive, last = time.monotonic(), beat
            if time.monotonic() - alive > self._worker_timeout_s:
                raise EvaluatorError(
                    f"No worker has served {self._folder} for {self._worker_timeout_s:.0f} s.",
                    f"Start one with: {self._serve_command}; then {TRY_AGAIN}.",
                )
            await asyncio.sleep(POLL_S)
        return path.read_text(encoding="utf-8")

    def _heartbeat(self) -> str:
        try:
            return (self._folder / "heartbeat").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""


def _parse_answer(text: str) -> dict[str, object]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise _unreadable(error) from error
    return content if isinstance(content, dict) else {}


def _read(kind: type[Record], text: str) -> Record:
    try:
        return from_json(kind, text)
    except ProtocolError as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> EvaluatorError:
    return EvaluatorError(f"The worker's answer cannot be read: {error}.", "Run the same version on both sides.")
