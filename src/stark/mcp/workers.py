"""Lends one warm evaluator for each kind of device to all clients and searches of the server.

So the evaluator's own lanes decide who uses a device, one at a time. An evaluator without a user is closed after a
while, and at once if the last call was cancelled: then none of its processes is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from stark.core.interfaces import Evaluator
from stark.core.settings import EvaluationSettings
from stark.evaluation.open import open_evaluator
from stark.evaluation.shared import SharedEvaluator, WrappedEvaluator
from stark.store.lookup import load_reports
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest

IDLE_S = 300.0


class ConfinedTasks(WrappedEvaluator):
    """An evaluator that confines every task as it confines a candidate, because an agent may have written it."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        return await self._evaluator.evaluate(replace(request, untrusted_task=True))


@dataclass(frozen=True)
class Lent:
    """An open evaluator, also in a form that evaluates each task's own model only once."""

    evaluator: Evaluator
    with_kept_references: Evaluator


class SharedWorker:
    """One evaluator that is opened for its first user and closed some time after its last."""

    def __init__(self, settings: EvaluationSettings, trust_tasks: bool, idle_s: float) -> None:
        self._settings, self._trust_tasks, self._idle_s = settings, trust_tasks, idle_s
        self._lock, self._users = asyncio.Lock(), 0
        self._lent: Lent | None = None
        self._idle: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Lent]:
        """Lend the evaluator. A cancelled user takes it along if there is no other."""
        lent, idle_s = await self._begin(), self._idle_s
        try:
            yield lent
        except asyncio.CancelledError:
            idle_s = 0.0
            raise
        finally:
            self._users -= 1
            self._forget_idle()
            self._idle = asyncio.create_task(self._close_when_idle(idle_s))
            if not idle_s:
                await asyncio.shield(self._idle)

    async def close(self) -> None:
        """End every process, if no call uses them."""
        self._forget_idle()
        await self._close_when_idle(0.0)

    async def _begin(self) -> Lent:
        async with self._lock:
            self._forget_idle()
            if self._lent is None:
                evaluator = open_evaluator(self._settings, load_reports)
                evaluator = evaluator if self._trust_tasks else ConfinedTasks(evaluator)
                await evaluator.__aenter__()
                self._lent = Lent(evaluator, SharedEvaluator(evaluator))
            self._users += 1
            return self._lent

    def _forget_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()

    async def _close_when_idle(self, idle_s: float) -> None:
        await asyncio.sleep(idle_s)
        async with self._lock:
            if self._users or self._lent is None:
                return
            lent, self._lent = self._lent, None
            await asyncio.shield(lent.evaluator.__aexit__(None, None, None))


class Workers:
    """The shared workers of the server, one for each kind of device."""

    def __init__(self, trust_tasks: bool = False, idle_s: float = IDLE_S) -> None:
        self._trust_tasks, self._idle_s = trust_tasks, idle_s
        self._by_kind: dict[str, SharedWorker] = {}

    @asynccontextmanager
    async def lend(self, settings: EvaluationSettings) -> AsyncIterator[Lent]:
        """Lend the evaluator for the target of these settings. Its other rules travel with each request."""
        kind = settings.target.device_kind
        if kind not in self._by_kind:
            self._by_kind[kind] = SharedWorker(settings, self._trust_tasks, self._idle_s)
        async with self._by_kind[kind].lend() as lent:
            yield lent

    async def close(self) -> None:
        """End every process that this server has started for evaluations."""
        await asyncio.gather(*(worker.close() for worker in self._by_kind.values()))
