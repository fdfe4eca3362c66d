"""One evaluator for many runs, which evaluates each task's reference once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import TracebackType
from typing import Self

from stark.core.errors import TaskError
from stark.core.interfaces import Evaluator
from stark.core.steps import Step
from stark.evaluation.steps import report_step
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import ALWAYS_MS, EvalRequest, Limits


class WrappedEvaluator:
    """Opens and closes another evaluator, and has its device. What it does with a request is up to the subclass."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    async def __aenter__(self) -> Self:
        await self._evaluator.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._evaluator.__aexit__(kind, error, trace)

    async def device(self) -> DeviceFacts:
        return await self._evaluator.device()


class SharedEvaluator(WrappedEvaluator):
    """Evaluates the reference of a task once, so that all runs on the task use the same time."""

    def __init__(self, evaluator: Evaluator) -> None:
        super().__init__(evaluator)
        self._locks: dict[EvalRequest, asyncio.Lock] = {}
        self._references: dict[EvalRequest, EvalReport | TaskError] = {}

    def has_reference(self, request: EvalRequest) -> bool:
        return _key(request) in self._references

    def add_reference(self, request: EvalRequest, report: EvalReport) -> None:
        """Take over a report of an earlier session."""
        self._references[_key(request)] = report

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        if not request.is_reference:
            return await self._evaluator.evaluate(request)
        key = _key(request)
        lock = self._locks.setdefault(key, asyncio.Lock())
        if lock.locked():
            report_step(Step.SHARING)
        async with lock:
            if key not in self._references:
                try:
                    self._references[key] = await self._evaluator.evaluate(_with_profile(request))
                except TaskError as error:  # it would fail in the next run too
                    self._references[key] = error
        found = self._references[key]
        if isinstance(found, TaskError):
            raise found
        return found


def _key(request: EvalRequest) -> EvalRequest:
    """Drop what does not change a reference: deadlines and the wish for a profile."""
    return replace(request, limits=Limits(), profile_below_ms=0.0)


def _with_profile(request: EvalRequest) -> EvalRequest:
    """Ask for a profile even if the first run wants none: another run may want it."""
    return replace(request, profile_below_ms=ALWAYS_MS)
