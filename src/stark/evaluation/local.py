"""Judges candidates on this machine: one worker process per evaluation, one evaluation at a time per device.

Timing needs its device for itself, so each GPU is a lane, and so is the CPU. A GPU that is left unhealthy is not used
again. The worker gets no secrets, a folder of its own and a deadline, and ends with everything it started, also when
the evaluation is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import stark_worker
from stark.errors import EvaluatorError, TaskError
from stark.settings import EvaluationSettings
from stark_worker.protocol import (
    DeviceFacts,
    EvalReport,
    EvalRequest,
    Outcome,
    ProtocolError,
    Target,
    from_json,
    to_json,
)

SLACK_S = 120.0  # for starting, for the reference, and for cleaning up
DEVICE_S = 120.0
GRACE_S = 15.0
TASK_FAULT = 4  # exit code of a worker whose task does not work by itself
UNHEALTHY = "GPU unhealthy"  # what a worker says of a device that failed its health check
INHERITED = ("HOME", "LANG", "LC_ALL", "TZ", "CC", "CXX", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CUDA_HOME")

log = logging.getLogger(__name__)


class WorkerSilent(EvaluatorError):
    """The worker took longer than the candidate was allowed to."""


class WorkerFault(Exception):
    """The worker ended without an answer; it may do better next time."""

    def __init__(self, message: str = "", killed: bool = False) -> None:
        super().__init__(message)
        self.killed = killed


class LocalEvaluator:
    """Evaluates in worker processes on this machine."""

    def __init__(self, settings: EvaluationSettings) -> None:
        self._settings = settings
        self._lanes = asyncio.Queue[str]()
        for lane in lanes(settings.target):
            self._lanes.put_nowait(lane)
        self.slots = max(1, self._lanes.qsize())
        self._healthy = self.slots
        self._device: DeviceFacts | None = None

    async def __aenter__(self) -> Self:
        check_machine(self._settings.target)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing outlives an evaluation."""

    async def device(self) -> DeviceFacts:
        """This machine, asked once."""
        if self._device is None:
            try:
                command = f"device --target {self._settings.target}"
                self._device = from_json(DeviceFacts, await self._ask(command, "", DEVICE_S))
            except WorkerFault as fault:
                raise _no_fault_of_the_candidate(fault) from fault
        return self._device

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        """One report. Faults of the machinery are retried, then raised."""
        deadline_s = request.limits.build_s + request.limits.run_s + SLACK_S
        try:
            answer = await self._ask("judge", to_json(request), deadline_s)
        except WorkerSilent as silence:
            if request.entry != "Model":  # the reference was measured in time, so it is this candidate
                return EvalReport(Outcome.TIMEOUT, log=silence.message)
            raise
        except WorkerFault as fault:
            if fault.killed and request.entry != "Model":  # again and again, and only with this candidate
                return EvalReport(Outcome.CRASH, log="The process that judged the candidate was killed every time.")
            raise _no_fault_of_the_candidate(fault) from fault
        try:
            return from_json(EvalReport, answer)
        except ProtocolError as error:
            raise EvaluatorError(
                f"The worker's report cannot be read: {error}.", "Check that both sides have the same version."
            ) from error

    async def _ask(self, command: str, text: str, deadline_s: float) -> bytes:
        fault = WorkerFault()
        for _ in range(self._settings.retries + 1):
            lane, failed = await self._lanes.get(), None
            try:
                return await run_worker(command, text.encode(), deadline_s, lane)
            except WorkerFault as error:
                fault = failed = error
            finally:
                self._give_back(lane, failed)
        raise fault

    def _give_back(self, lane: str, fault: WorkerFault | None) -> None:
        """Make a lane free again, unless its GPU was left unhealthy and another one is there to go on with."""
        if fault is not None and UNHEALTHY in str(fault) and self._healthy > 1:
            self._healthy -= 1
            log.warning("GPU %s is unhealthy and is not used any more: %s", lane, fault)
        else:
            self._lanes.put_nowait(lane)


def lanes(target: Target) -> list[str]:
    """The devices candidates can be timed on beside each other: the CPU is one, and each visible GPU."""
    if target is Target.CPU:
        return ["cpu"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = (
        visible.split(",")
        if visible
        else [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    )
    return sorted(device for device in found if device) or ["0"]


def _no_fault_of_the_candidate(fault: WorkerFault) -> EvaluatorError:
    return EvaluatorError(
        f"This machine could not evaluate, which is no fault of the candidate: {fault}",
        "Put that right and resume the run.",
    )


def check_machine(target: Target) -> None:
    """Refuse at once what could only fail later, and say what is missing."""
    if not sys.platform.startswith("linux"):
        raise EvaluatorError(
            "Kernels can be evaluated on Linux only.",
            "Run on Linux, or use the folder evaluator, which has them judged on another machine.",
        )
    if importlib.util.find_spec("torch") is None:
        raise EvaluatorError(
            "PyTorch is not installed, and evaluating on this machine needs it.",
            "Install it with: pip install 'stark-kernels[local]'",
        )
    for tool, remedy in (
        (os.environ.get("CXX", "c++"), "Install a C++ compiler, on Debian or Ubuntu: apt install g++"),
        ("ninja", "Install it with: pip install 'stark-kernels[local]'"),
    ):
        if shutil.which(tool, path=_path()) is None:
            raise EvaluatorError(f"{tool} was not found, and compiling kernels for the cpu needs it.", remedy)


async def run_worker(command: str, text: bytes, deadline_s: float, lane: str) -> bytes:
    """One worker from start to end; what it wrote to standard output."""
    with tempfile.TemporaryDirectory(prefix="stark-worker-", ignore_cleanup_errors=True) as folder:
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "stark_worker", *command.split()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=environment(folder) | ({} if lane == "cpu" else {"CUDA_VISIBLE_DEVICES": lane}),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(deadline_s):
                answer, errors = await worker.communicate(text)
        except TimeoutError:
            raise WorkerSilent(
                f"The worker gave no answer within {deadline_s:.0f} s, which is more than the candidate may take.",
                "Most likely the task's reference is very slow here; make the task smaller or raise evaluation.run_s.",
            ) from None
        finally:
            await _end(worker)
    return _answer(worker.returncode, answer, errors)


def _answer(code: int | None, answer: bytes, errors: bytes) -> bytes:
    if code == 0:
        return answer
    lines = errors.decode(errors="replace").strip().splitlines() or [f"the worker ended with code {code}"]
    if code == TASK_FAULT:
        raise TaskError(
            f"The task does not work by itself. {lines[-1].removeprefix('task: ')}",
            "Fix the task file; no kernel was judged.",
        )
    raise WorkerFault(lines[-1].removeprefix("worker: ")[:500], killed=code is not None and code < 0)


async def _end(worker: asyncio.subprocess.Process) -> None:
    """Ask a worker to end, which takes its candidate along, and insist after a while."""
    if worker.returncode is not None:
        return
    try:
        with contextlib.suppress(ProcessLookupError, TimeoutError):
            worker.terminate()
            await asyncio.wait_for(worker.wait(), GRACE_S)
    finally:
        if worker.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            await worker.wait()


def environment(folder: str) -> dict[str, str]:
    """What a worker sees of the environment: never a key."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    packages = str(Path(stark_worker.__file__).resolve().parent.parent)
    return kept | {"PATH": _path(), "TMPDIR": folder, "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
