"""Judges candidates on this machine, by the station of ``stark_worker``: it keeps everything warm that can be.

What a candidate gets to see holds no secrets, and everything ends with the evaluation, also when that is cancelled.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from stark.errors import EvaluatorError, TaskError
from stark.settings import EvaluationSettings
from stark_worker.cache import default_cache
from stark_worker.faults import MachineryFault, RefereeDied, RefereeSilent, SandboxTooWeak, TaskFault
from stark_worker.protocol import DeviceFacts, EvalReport, EvalRequest, Outcome, ProtocolError, Target
from stark_worker.station import Station


class LocalEvaluator:
    """Evaluates in processes on this machine."""

    def __init__(self, settings: EvaluationSettings) -> None:
        self._settings = settings
        self._station = Station(settings.target, default_cache(), settings.allow_weak_sandbox)
        self.slots = self._station.slots

    async def __aenter__(self) -> Self:
        check_machine(self._settings.target)
        await self._station.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing outlives an evaluator."""
        await self._station.__aexit__(kind, error, trace)

    async def device(self) -> DeviceFacts:
        """This machine, asked once."""
        try:
            return await self._station.device()
        except MachineryFault as fault:
            raise _no_fault_of_the_candidate(fault) from fault

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        """One report. Faults of the machinery are retried, then raised."""
        for tries_left in range(self._settings.retries, -1, -1):
            try:
                return await self._station.judge(request)
            except TaskFault as fault:
                raise TaskError(
                    f"The task does not work by itself. {fault}", "Fix the task file; no kernel was judged."
                ) from fault
            except SandboxTooWeak as fault:
                raise EvaluatorError(
                    f"{fault} No candidate was loaded.",
                    "`stark doctor` tries every control. --allow-weak-sandbox accepts the level weak, but never none.",
                ) from fault
            except RefereeSilent as silence:
                return _too_slow(request, silence)
            except (MachineryFault, ProtocolError, OSError) as fault:
                if not tries_left:
                    return _given_up(request, fault)
        raise AssertionError("unreachable")


def _too_slow(request: EvalRequest, silence: RefereeSilent) -> EvalReport:
    if request.entry != "Model":  # the reference was measured in time, so it is this candidate
        return EvalReport(Outcome.TIMEOUT, log=str(silence))
    raise EvaluatorError(
        str(silence),
        "Most likely the task's reference is very slow here; make the task smaller or raise evaluation.run_s.",
    ) from silence


def _given_up(request: EvalRequest, fault: Exception) -> EvalReport:
    if isinstance(fault, RefereeDied) and request.entry != "Model":  # again and again, and only with this candidate
        return EvalReport(Outcome.CRASH, log=f"The process that judged the candidate died every time. {fault}")
    raise _no_fault_of_the_candidate(fault) from fault


def _no_fault_of_the_candidate(fault: Exception) -> EvaluatorError:
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


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
