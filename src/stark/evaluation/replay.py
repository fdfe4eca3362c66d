"""Gives the reports a stored run or benchmark holds, so that a search can be studied without its machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from stark.core.errors import EvaluatorError, UsageError
from stark.core.settings import EvaluationSettings
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import EvalRequest, Score

Judged = Mapping[tuple[str, str, str, Score, bool], EvalReport]  # task, candidate, entry, score, in a final -> report
StoredReports = Callable[[str], tuple[DeviceFacts, Judged]]


class ReplayEvaluator:
    """Answers at once, and only what was answered before."""

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
        """The stored report on that candidate by that score: of a final where one was held, otherwise of a search."""
        key = (request.task_source, request.candidate_source, request.entry, request.score)
        final = request.rival_source is not None
        found = self._judged.get((*key, final)) or self._judged.get((*key, False))
        if found is None:
            more = " A final asks for both scores; evaluation.final=false leaves it out." if final else ""
            raise EvaluatorError(
                f"The run in {self._folder} never judged this candidate by the score {request.score}.",
                f"A replay knows only what was tried; evaluate anything else for real.{more}",
            )
        return found
