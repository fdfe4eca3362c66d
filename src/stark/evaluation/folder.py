"""Has candidates judged elsewhere: requests go into a folder, a worker on another machine answers through it.

    host      stark optimize task.py --evaluator folder --set evaluation.folder=/shared/stark --target cuda
    worker    python -m stark_worker serve /shared/stark --target cuda

Needs nothing but the folder, and survives a restart of either side: a host that comes back and asks the same again
takes up what it asked before, and finds the answer that came meanwhile. Hosts that ask the same at once each get an
answer of their own. All workers of a folder have the same kind of device: times of different ones say nothing about
each other, so that a report from another device than the first is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

from stark.core.errors import EvaluatorError, UsageError
from stark.core.settings import EvaluationSettings
from stark.evaluation.faults import AGAIN, Teller
from stark_worker.protocol.codec import ProtocolError, from_json, to_json
from stark_worker.protocol.errors import fault_of
from stark_worker.protocol.folder import ANSWERS, ASKED, PARTS, WAY, lock, write_whole
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import EvalRequest

POLL_S = 0.1

Record = TypeVar("Record")


class FolderEvaluator:
    """Waits for a worker that serves the folder."""

    def __init__(self, settings: EvaluationSettings) -> None:
        if settings.folder is None:
            raise UsageError("The folder evaluator needs a folder.", "Name one with --set evaluation.folder=DIR.")
        self._folder = Path(settings.folder)
        self._patience_s = settings.patience_s
        self._retries = settings.retries
        self._target = settings.target
        self._device: DeviceFacts | None = None
        self._serve = f"python -m stark_worker serve {self._folder} --target {self._target}"
        self._there = Teller(
            f"The worker behind {self._folder}",
            f"python -m stark_worker doctor --target {self._target}",
            f"{self._serve} --allow-weak-sandbox",
        )

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
        """What the worker said it is when it was first asked."""
        if self._device is None:
            facts = _read(DeviceFacts, await self._wait_for(self._folder / "device.json"))
            if facts.kind != self._target.device_kind:
                raise EvaluatorError(
                    f"The worker behind {self._folder} judges on {facts.name} ({facts.kind}), and the target "
                    f"{self._target} needs a device of the kind {self._target.device_kind}.",
                    f"Start it there with: {self._serve} and try again, or ask for another --target.",
                )
            self._device = facts
        return self._device

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        """One report, however long a living worker takes. Faults of the machinery are retried, then raised."""
        report = await self._there.report(self._ask, request, self._retries)
        if report.device is not None:
            self._check_same(await self.device(), report.device)
        return report

    def _check_same(self, first: DeviceFacts, other: DeviceFacts) -> None:
        """Times on different devices are never compared without a word."""
        if (first.kind, first.name) != (other.kind, other.name):
            raise EvaluatorError(
                f"{self._folder} is served by different devices: this run began on {first.name} ({first.kind}), and a "
                f"report came from {other.name} ({other.kind}). Their times cannot be compared.",
                f"Let only machines with {first.name} serve this folder, give others one of their own, and resume.",
            )

    async def _ask(self, request: EvalRequest) -> EvalReport:
        text = to_json(request)
        with self._asking(request) as asked:  # it and what belongs to it stay if we are stopped, for whoever comes back
            name = Path(asked.name).name
            if not any((self._folder / part / name).exists() for part in WAY):
                write_whole(self._folder / "requests" / name, text)
            answer = self._folder / ANSWERS / name
            said = await self._wait_for(answer)
            answer.unlink(missing_ok=True)
            Path(asked.name).unlink(missing_ok=True)
        content = _content(said)
        if "report" not in content:
            raise fault_of(content.get("fault"), content.get("message"))
        return _read(EvalReport, json.dumps(content["report"]))

    def _asking(self, request: EvalRequest) -> IO[str]:
        """The right to wait for the answer: to one who asked the same and is gone, or to nobody else's question. From
        what time on a profile is wanted changes while a run goes on, and makes no other question."""
        text = to_json(replace(request, profile_below_ms=0.0))
        folder, key = self._folder / ASKED, hashlib.sha256(text.encode()).hexdigest()[:32]
        for left in sorted(folder.glob(f"{key}-*.json")):
            if file := lock(left):
                return file
        while True:
            new = folder / f"{key}-{secrets.token_hex(8)}.json"
            new.touch(exist_ok=False)
            if file := lock(new):  # unless another took it for one that was left
                return file

    async def _wait_for(self, path: Path) -> str:
        """The content of a file once it is there. Gives up when no worker has shown a sign of life for long."""
        alive, last = time.monotonic(), self._heartbeat()
        while not path.exists():
            if (beat := self._heartbeat()) != last:
                alive, last = time.monotonic(), beat
            if time.monotonic() - alive > self._patience_s:
                raise EvaluatorError(
                    f"No worker has served {self._folder} for {self._patience_s:.0f} s.",
                    f"Start one with: {self._serve}; then {AGAIN}.",
                )
            await asyncio.sleep(POLL_S)
        return path.read_text(encoding="utf-8")

    def _heartbeat(self) -> str:
        try:
            return (self._folder / "heartbeat").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""


def _content(said: str) -> dict[str, object]:
    try:
        content = json.loads(said)
    except ValueError as error:
        raise _unreadable(error) from error
    return content if isinstance(content, dict) else {}


def _read(kind: type[Record], text: str) -> Record:
    try:
        return from_json(kind, text)
    except ProtocolError as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> EvaluatorError:
    return EvaluatorError(f"What the worker says cannot be read: {error}.", "Run the same version on both sides.")
