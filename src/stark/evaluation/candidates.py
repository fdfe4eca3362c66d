"""Evaluates the candidates of one run; identical sources are evaluated once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import islice

from stark.core.interfaces import Evaluator
from stark.core.settings import Settings
from stark.core.task import Task
from stark.core.tree import Tree
from stark.evaluation.requests import make_request
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import ALWAYS_MS, Entry


class CandidateEvaluator:
    """Turns a source into a report for one task, its settings and its tree."""

    def __init__(self, evaluator: Evaluator, task: Task, settings: Settings, tree: Tree) -> None:
        self._evaluator, self._task, self._settings, self._tree = evaluator, task, settings, tree
        self._locks: dict[str, asyncio.Lock] = {}
        self._reports: dict[str, EvalReport] = {}  # of candidates whose nodes are not in the tree yet

    async def evaluate(self, source: str) -> EvalReport:
        """Return the report of an identical candidate, or evaluate this one."""
        async with self._locks.setdefault(source, asyncio.Lock()):
            twin = self._tree.twin(source)
            if twin is not None:
                return twin.report
            if source not in self._reports:
                self._reports[source] = await self.measure(source)
            return self._reports[source]

    async def measure(self, source: str, entry: Entry = Entry.CANDIDATE) -> EvalReport:
        """Evaluate a source without looking for an identical one."""
        request = make_request(self._task, source, self._settings.evaluation, entry)
        return await self._evaluator.evaluate(replace(request, profile_below_ms=self._profile_below_ms()))

    def forget(self, source: str | None) -> None:
        """Drop a report that the tree holds from now on."""
        if source is not None:
            self._reports.pop(source, None)

    def _profile_below_ms(self) -> float:
        """Return the time below which a candidate becomes a leader and gets a profile."""
        windows = self._settings.windows
        if not windows.profile:
            return 0.0
        ahead = [node.runtime_ms for node in islice(self._tree.ranked(), windows.leaders + 1)]
        return ahead[-1] or 0.0 if len(ahead) > windows.leaders else ALWAYS_MS
