"""Gives the reports a stored run or benchmark holds, so that a search can be studied without its machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from stark.errors import EvaluatorError, UsageError
from stark.settings import EvaluationSettings
from stark_worker.protocol import DeviceFacts, EvalReport, EvalRequest

Judged = Mapping[tuple[str, str, str], EvalReport]  # (task, candidate, entry) -> report
StoredReports = Callable[[str], tuple[DeviceFacts, Judged]]


class ReplayEvaluator:
    """Answers at once, and only what was answered before."""

    slots = 8

    def __init__(self, settings: EvaluationSettings, stored_reports: StoredReports) -> None:
        if settings.folder is None:
            raise UsageError("The replay evaluator needs a run folder.", "Name it with --set evaluation.folder=DIR.")
        self._folder = settings.folder
        self._device, self._judged = stored_reports(settings.folder)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """There is nothing to release."""

    async def device(self) -> DeviceFacts:
        """What the stored run was measured on."""
        return self._device

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        """The stored report on that candidate."""
        key = (request.task_source, request.candidate_source, request.entry)
        if key not in self._judged:
            raise EvaluatorError(
                f"The run in {self._folder} never judged this candidate.",
                "A replay knows only what was tried; evaluate anything else for real.",
            )
        return self._judged[key]
