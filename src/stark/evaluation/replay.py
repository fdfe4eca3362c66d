"""Answers with stored reports, so that a search can be studied without its machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from stark.core.errors import EvaluatorError, UsageError
from stark.core.settings import EvaluationSettings
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import EvalRequest, Score

# by task, candidate, entry, score, and whether it is a report of a final check
ReportsByRequest = Mapping[tuple[str, str, str, Score, bool], EvalReport]
StoredReports = Callable[[str], tuple[DeviceFacts, ReportsByRequest]]


class ReplayEvaluator:
    """Answers only requests that a stored run answered before."""

    def __init__(self, settings: EvaluationSettings, load_reports: StoredReports) -> None:
        if settings.folder is None:
            raise UsageError("The replay evaluator needs a run folder.", "Name it with --set evaluation.folder=DIR.")
        self._folder = settings.folder
        self._device, self._reports = load_reports(settings.folder)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: there is nothing to release."""

    async def device(self) -> DeviceFacts:
        """Return the device of the stored run."""
        return self._device

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        """Return the stored report by that score. A request for a final check falls back to the search's report."""
        key = (request.task_source, request.candidate_source, request.entry, request.score)
        final = request.opponent_source is not None
        found = self._reports.get((*key, final)) or self._reports.get((*key, False))
        if found is None:
            more = " To leave the final check out, add --set evaluation.final=false." if final else ""
            raise EvaluatorError(
                f"The run in {self._folder} holds no report on this candidate by the score {request.score}.",
                f"Evaluate it for real: --evaluator local.{more}",
            )
        return found
