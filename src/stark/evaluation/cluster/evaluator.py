"""Evaluates candidates on a Ray cluster. The coordinator is this process; a gateway talks to Ray.

Every question is asked until it is answered once: a gateway that ends is replaced, and the new one gets the questions
that are open. An answer to a question that is no longer open is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import logging
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from stark.core.errors import EvaluatorError, UsageError
from stark.core.settings import EvaluationSettings
from stark.evaluation.cluster.kinds import describe_kind
from stark.evaluation.cluster.messages import Did, Event, Order, Question
from stark.evaluation.faults import TRY_AGAIN, FaultTranslator
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.errors import make_fault
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import EvalRequest
from stark_worker.scheduler.retry import judge_with_retries

GATEWAY = "stark.evaluation.cluster.gateway"
LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # on every system 0 makes Ray listen at 127.0.0.1 only
RESTART_EVERY_S, EXIT_S = 5.0, 30.0
MAX_LINE_BYTES = 2**28
# Tools, folders and Ray's own variables, but no key: Ray's processes inherit what the gateway has.
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CACHE_HOME", "PYTHONPATH", "VIRTUAL_ENV")
TOOLS = ("CC", "CXX", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "TORCH_CUDA_ARCH_LIST")

log = logging.getLogger(__name__)


class RayEvaluator:
    """Asks the lanes of a Ray cluster, or of one that it starts on this machine."""

    def __init__(self, settings: EvaluationSettings) -> None:
        if settings.ray_address and settings.ray_address.startswith("ray://"):
            raise UsageError(
                f"{settings.ray_address} is an address for Ray's client, which STARK does not use.",
                "Run STARK on a machine of the cluster, with --ray-address auto.",
            )
        self._settings = settings
        self._faults = FaultTranslator(
            "The Ray cluster", f"python -m stark_worker doctor --target {settings.target}", "--allow-weak-sandbox"
        )
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Question, asyncio.Future[Event]]] = {}
        self._token = secrets.token_hex(32)  # of a cluster that is started here
        self._device: asyncio.Future[DeviceFacts]
        self._writer: asyncio.StreamWriter | None = None
        self._serving: asyncio.Task[None] | None = None
        self._failure: EvaluatorError | None = None  # the last word of the cluster
        self.lanes: list[str] = []  # descriptions of all that were ever used

    async def __aenter__(self) -> Self:
        if importlib.util.find_spec("ray") is None:
            raise EvaluatorError("Ray is not installed.", "Install it with: pip install 'stark-kernels[ray]'")
        self._device = asyncio.get_running_loop().create_future()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this object
        self._serving = asyncio.create_task(self._keep_gateway())
        try:
            await self.device()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give all lanes back; end the cluster if it was started here."""
        await self._close()

    async def _close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        self._log.close()

    async def device(self) -> DeviceFacts:
        """Return the facts of the lanes' devices, which are all of one kind."""
        return await asyncio.shield(self._device)

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        """Evaluate one candidate. A lost lane is no fault: another one judges. Faults of a machine are retried."""
        avoid: list[str] = []

        async def ask(request: EvalRequest) -> EvalReport:
            answer = await self._ask(request, tuple(avoid))
            if answer.did is Did.LOST:
                raise EvaluatorError(
                    f"{answer.text} This is not the candidate's fault.", f"Look at the cluster, then {TRY_AGAIN}."
                )
            if answer.did is Did.FAULT:
                avoid.append(answer.lane)
                raise make_fault(answer.fault, answer.text)
            return from_json(EvalReport, answer.text)

        with self._faults.translate():
            return await judge_with_retries(ask, request, self._settings.retries)

    async def _ask(self, request: EvalRequest, avoid: tuple[str, ...]) -> Event:
        if self._failure is not None:
            raise self._failure
        question = Question(next(self._numbers), to_json(request), avoid)
        answer: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._open[question.number] = question, answer
        self._send(question)
        try:
            return await answer
        finally:
            del self._open[question.number]
            if answer.cancelled():
                self._send(Question(question.number))

    def _send(self, message: Question | Order) -> None:
        if self._writer is not None and not self._writer.is_closing():  # else the next gateway gets what is open
            self._writer.write(to_json(message).encode() + b"\n")

    # -- the gateway --------------------------------------------------------------------------------------------------

    async def _keep_gateway(self) -> None:
        """Run gateways one after another, until the cluster stays away for too long or cannot be used."""
        patience = time.monotonic() + self._settings.worker_timeout_s
        while True:
            failure = await self._run_gateway()
            if failure is None:  # it has served, and then ended
                patience = time.monotonic() + self._settings.worker_timeout_s
                log.warning("The connection to the Ray cluster is lost; connecting again.")
            elif not self._device.done() or time.monotonic() > patience:
                self._fail(failure)
                return
            await asyncio.sleep(RESTART_EVERY_S)

    def _fail(self, failure: EvaluatorError) -> None:
        """Let everything that waits fail, and all that is asked from now on."""
        self._failure = failure
        if not self._device.done():
            self._device.set_exception(failure)
        for _, answer in self._open.values():
            if not answer.done():
                answer.set_exception(failure)

    async def _run_gateway(self) -> EvaluatorError | None:
        """Run one gateway to its end. Return the reason if it could not serve."""
        self._log.seek(0)
        self._log.truncate()
        process = await asyncio.create_subprocess_exec(
            *self._command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            env=self._environment(),
            limit=MAX_LINE_BYTES,
            start_new_session=True,  # Ctrl-C lets running attempts finish, so it must not reach Ray
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._writer = process.stdin
        try:
            self._send(self._order())
            for question, _ in self._open.values():
                self._send(question)
            return await self._take_events(process.stdout)
        finally:
            self._writer = None
            with contextlib.suppress(TimeoutError):  # its input is closed, so it ends, and a cluster that it started
                await asyncio.wait_for(process.communicate(), EXIT_S)
            if process.returncode is None:
                process.kill()
                await process.communicate()

    def _command(self) -> list[str]:
        return [sys.executable, "-m", GATEWAY]

    async def _take_events(self, events: asyncio.StreamReader) -> EvaluatorError | None:
        has_served = False
        while line := await events.readline():
            event = from_json(Event, line)
            match event.did:
                case Did.READY:
                    has_served = True
                    if not self._device.done():
                        self._device.set_result(from_json(DeviceFacts, event.text))
                case Did.NOTE:
                    self.lanes.append(event.text)
                    log.info("%s", event.text)
                case Did.FAILED:
                    return EvaluatorError(event.text, event.next_step)
                case _:
                    _, answer = self._open.get(event.number, (None, None))
                    if answer is not None and not answer.done():
                        answer.set_result(event)
        return None if has_served else EvaluatorError(f"Ray ended early. {self._last_line()}", f"Then {TRY_AGAIN}.")

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "It gave no reason."

    def _order(self) -> Order:
        chosen = self._settings
        known = describe_kind(self._device.result()) if self._device.done() else None
        return Order(
            chosen.target,
            chosen.ray_address,
            chosen.device_kind,
            chosen.lanes,
            chosen.allow_weak_sandbox,
            chosen.worker_timeout_s,
            known,
        )

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in (*INHERITED, *TOOLS) or name[:4] == "RAY_"}
        private = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self._token, LOOPBACK_ONLY: "0"}
        own = {} if self._settings.ray_address else private
        # Where a package is not installed but on the path, the gateway finds it as this process does.
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), kept.get("PYTHONPATH", "")]))
        return {**kept, **own, "PYTHONPATH": path}
