"""Evaluates candidates on this machine, in the processes of a ``stark_worker`` that stays warm.

Candidates see no secrets. Every process ends with its evaluation, also if that is cancelled.
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
from stark.core.steps import Step
from stark.evaluation.faults import FaultTranslator
from stark.evaluation.steps import report_step
from stark_worker.compiler.cache import default_cache_dir
from stark_worker.protocol.report import DeviceFacts, EvalReport, Phase
from stark_worker.protocol.request import EvalRequest, Target
from stark_worker.scheduler.retry import judge_with_retries
from stark_worker.scheduler.worker import SHOW_GPUS_HINT, Worker, hidden_gpu_reason

STEPS = {Phase.QUEUE: Step.WAITING, Phase.BUILD: Step.BUILDING, Phase.START: Step.JUDGING}
FAULTS = FaultTranslator("This machine", "stark doctor", "--allow-weak-sandbox")


class LocalEvaluator:
    """Evaluates in processes on this machine."""

    def __init__(self, settings: EvaluationSettings) -> None:
        self._settings = settings
        self._worker = Worker(settings.target, default_cache_dir(), settings.allow_weak_sandbox)

    async def __aenter__(self) -> Self:
        check_machine(self._settings.target)
        with FAULTS.translate():
            await self._worker.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process of the worker."""
        await self._worker.__aexit__(kind, error, trace)

    async def device(self) -> DeviceFacts:
        """Return the facts of this machine."""
        with FAULTS.translate():
            return await self._worker.device()

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        """Evaluate one candidate. Faults of the machine are retried, then raised."""
        with FAULTS.translate():
            return await judge_with_retries(self._judge, request, self._settings.retries)

    async def _judge(self, request: EvalRequest) -> EvalReport:
        return await self._worker.judge(request, lambda phase: report_step(STEPS[phase]))


def check_machine(target: Target) -> None:
    """Refuse a machine that lacks something, and name it."""
    if not sys.platform.startswith("linux"):
        raise EvaluatorError(
            "Kernels can be evaluated on Linux only.",
            "Run on Linux, or let another machine evaluate them: --evaluator folder.",
        )
    if why := hidden_gpu_reason(target):
        raise EvaluatorError(why, SHOW_GPUS_HINT)
    if importlib.util.find_spec("torch") is None:
        raise EvaluatorError(
            "PyTorch is not installed; this machine needs it to evaluate.",
            "Install it with: pip install 'stark-kernels[local]'",
        )
    for tool, remedy in (
        (_compiler(), "Install a C++ compiler, on Debian or Ubuntu: apt install g++"),
        ("ninja", "Install it with: pip install 'stark-kernels[local]'"),
    ):
        if shutil.which(tool, path=_path()) is None:
            raise EvaluatorError(f"{tool} was not found; compiling kernels for the cpu needs it.", remedy)


def _compiler() -> str:
    """Return the program that CXX names; CXX may hold arguments too, as in ccache g++."""
    command = os.environ.get("CXX", "c++")
    try:
        return next(iter(shlex.split(command)), command)
    except ValueError:  # an open quote: no program has such a name
        return command


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
