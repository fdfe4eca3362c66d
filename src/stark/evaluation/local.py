"""Judges candidates on this machine, by the station of ``stark_worker``: it keeps everything warm that can be.

What a candidate gets to see holds no secrets, and everything ends with the evaluation, also when that is cancelled.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from stark.core.errors import EvaluatorError
from stark.core.settings import EvaluationSettings
from stark.evaluation.faults import Teller
from stark_worker.compiler.cache import default_cache
from stark_worker.protocol.errors import MachineryFault
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import EvalRequest, Target
from stark_worker.scheduler.worker import SHOW_THEM, Station, hidden

HERE = Teller("This machine", "stark doctor", "--allow-weak-sandbox")


class LocalEvaluator:
    """Evaluates in processes on this machine."""

    def __init__(self, settings: EvaluationSettings) -> None:
        self._settings = settings
        self._station = Station(settings.target, default_cache(), settings.allow_weak_sandbox)

    async def __aenter__(self) -> Self:
        check_machine(self._settings.target)
        try:
            await self._station.__aenter__()
        except MachineryFault as fault:
            raise HERE.no_fault_of_the_candidate(fault) from fault
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
            raise HERE.no_fault_of_the_candidate(fault) from fault

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        """One report. Faults of the machinery are retried, then raised."""
        return await HERE.report(self._station.judge, request, self._settings.retries)


def check_machine(target: Target) -> None:
    """Refuse at once what could only fail later, and say what is missing."""
    if not sys.platform.startswith("linux"):
        raise EvaluatorError(
            "Kernels can be evaluated on Linux only.",
            "Run on Linux, or use the folder evaluator, which has them judged on another machine.",
        )
    if why := hidden(target):
        raise EvaluatorError(why, SHOW_THEM)
    if importlib.util.find_spec("torch") is None:
        raise EvaluatorError(
            "PyTorch is not installed, and evaluating on this machine needs it.",
            "Install it with: pip install 'stark-kernels[local]'",
        )
    for tool, remedy in (
        (_compiler(), "Install a C++ compiler, on Debian or Ubuntu: apt install g++"),
        ("ninja", "Install it with: pip install 'stark-kernels[local]'"),
    ):
        if shutil.which(tool, path=_path()) is None:
            raise EvaluatorError(f"{tool} was not found, and compiling kernels for the cpu needs it.", remedy)


def _compiler() -> str:
    """The program of CXX, which may name one with its arguments: ccache g++."""
    named = os.environ.get("CXX", "c++")
    try:
        return next(iter(shlex.split(named)), named)
    except ValueError:  # a quote that is never closed: no program has such a name
        return named


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
