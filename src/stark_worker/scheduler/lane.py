"""One device and those who judge on it: a warm referee for each of the latest tasks, a fresh candidate for each trial.

No torch here: referee and candidate are processes of their own, and what they need of each other is handed to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from stark_worker.device.gpu_lock import LOCK_DIR, GpuLock, gpu_identity
from stark_worker.processes.channel import ChannelClosed
from stark_worker.processes.environment import child_environment
from stark_worker.processes.handles import ForkServer, ProcessHandle
from stark_worker.processes.workdir import REPORT_FILE, REQUEST_FILE, read_regular_file
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.errors import MachineryFault, RefereeDied, RefereeSilent, make_fault
from stark_worker.protocol.report import Check, EvalReport
from stark_worker.protocol.request import EXTRA_SHAPE_S, EXTRA_SHAPES, EvalRequest
from stark_worker.scheduler.slot import CandidateSlot

MAX_WARM_REFEREES = 2  # referees, each of another task


REFERENCE_SLACK_S = 120.0  # for the reference, and for cleaning up


class Lane:
    """Whoever has it may judge on its device."""

    def __init__(
        self, name: str, trusted: ForkServer, untrusted: ForkServer, folder: Path, shared: Path, locks: Path = LOCK_DIR
    ) -> None:
        self.name = name
        self.environment = {} if name == "cpu" else {"CUDA_VISIBLE_DEVICES": name}
        self._trusted, self._untrusted = trusted, untrusted
        self._folder, self._shared, self._locks = folder, shared, locks
        self._gpu_lock: GpuLock | None = None
        self._not_alone: str | None = None  # why others may be measuring too
        self._referees = OrderedDict[str, ProcessHandle]()  # the latest last
        # A referee of no task and a process of no candidate yet: to start CUDA takes longer than many trials.
        self._spare: ProcessHandle | None = None
        self._spare_slot: CandidateSlot | None = None

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Keep other processes from measuring on this device; it may be their turn first. The CPU is everybody's."""
        if self.name == "cpu":
            yield
            return
        if self._gpu_lock is None:
            device = await gpu_identity(self.name, child_environment(self._folder, self.environment))
            self._gpu_lock = GpuLock(device, self.name, self._locks)
        async with self._gpu_lock.hold() as self._not_alone:
            yield

    async def judge(self, request: EvalRequest) -> EvalReport:
        """One trial. What is left of it has ended when this returns, and is removed afterwards."""
        if self.name == "cpu":  # which would have less time for whoever is timed
            await self._untrusted.reaper.wait()
        slots: list[CandidateSlot] = []
        try:
            return await self._judge(request, slots)
        finally:
            for slot in slots:
                slot.remove()
            await asyncio.gather(*(asyncio.shield(slot.end()) for slot in slots))

    async def _judge(self, request: EvalRequest, slots: list[CandidateSlot]) -> EvalReport:
        """A referee whose trial was cut short is not used again."""
        key = referee_key(request)
        referee = None if request.untrusted_task else self._referees.pop(key, None) or self._take_spare()
        referee = referee or self._new_referee()
        async with contextlib.AsyncExitStack() as unless_it_answers:
            unless_it_answers.push_async_callback(referee.close)
            report = await self._trial(referee, request, slots)
            if self._not_alone:
                report = replace(report, checks=report.checks | {Check.EXCLUSIVE: f"not known: {self._not_alone}"})
            if request.untrusted_task:  # whoever loaded that is trusted with nothing else
                return report
            unless_it_answers.pop_all()
        self._referees[key] = referee
        while len(self._referees) > MAX_WARM_REFEREES:
            await self._referees.popitem(last=False)[1].close()
        if self._gpu_lock and not self._gpu_lock.has_waiters():  # whose turn it would disturb
            self._provide_spares()
        return report

    async def close(self) -> None:
        if spare := self._take_spare():
            await spare.close()
        if self._spare_slot is not None:
            self._spare_slot.remove()
            self._spare_slot = None
        while self._referees:
            await self._referees.popitem()[1].close()

    def _provide_spares(self) -> None:
        """What cannot be provided now is made when it is needed, and fails there if it has to."""
        with contextlib.suppress(MachineryFault, ChannelClosed, OSError):
            self._spare_slot = self._spare_slot or self._new_slot()
            if self._spare is None:
                self._spare = self._new_referee()
                self._spare.channel.send(do="start")

    def _take_spare(self) -> ProcessHandle | None:
        spare, self._spare = self._spare, None
        return spare

    def _new_referee(self) -> ProcessHandle:
        folder = Path(tempfile.mkdtemp(prefix="referee-", dir=self._folder))
        return ProcessHandle(self._trusted, "referee", folder, self.environment)

    async def _trial(self, referee: ProcessHandle, request: EvalRequest, slots: list[CandidateSlot]) -> EvalReport:
        """The slots it takes are the caller's to remove."""
        sides, shapes = 1 if request.opponent_source is None else 2, EXTRA_SHAPES if request.with_labels else 0
        deadline_s = (
            sides * (request.limits.build_s + request.limits.run_s) + shapes * 2 * EXTRA_SHAPE_S + REFERENCE_SLACK_S
        )
        (referee.folder / REQUEST_FILE).write_text(to_json(request), encoding="utf-8")
        try:
            for _ in range(sides + shapes):
                slots.append(self._take_slot(waits=request.untrusted_task))
            ends, folders = [end for slot in slots for end in slot.ends], [str(slot.folder) for slot in slots]
            referee.channel.send(files=ends, do="judge", folders=folders, cache=str(self._shared))
            for slot in slots:
                slot.release()
            async with asyncio.timeout(deadline_s):
                said = await referee.expect("judged", "failed")
        except ChannelClosed as error:
            raise RefereeDied(f"The referee ended without an answer. {referee.last_output()}") from error
        except TimeoutError:
            raise RefereeSilent(
                f"No answer within {deadline_s:.0f} s, which is more than the candidate may take."
            ) from None
        finally:
            for slot in slots:
                slot.end()
        if said["did"] == "failed":
            raise make_fault(said.get("fault"), said.get("text"))
        return from_json(EvalReport, read_regular_file(referee.folder / REPORT_FILE))

    def _take_slot(self, waits: bool) -> CandidateSlot:
        if waits or self._spare_slot is None:
            return self._new_slot(waits)
        slot, self._spare_slot = self._spare_slot, None
        if slot.is_alive():
            return slot
        slot.remove()
        return self._new_slot()

    def _new_slot(self, waits: bool = False) -> CandidateSlot:
        order = {"gpu": self.name != "cpu", "waits": waits, "cache": str(self._shared)}
        return CandidateSlot(self._untrusted, self._folder, self.environment, order)


def referee_key(request: EvalRequest) -> str:
    """Requests that one referee can judge one after another."""
    parts = (
        *(request.task_source, request.precision, request.score, request.kernelbench_version),
        *(request.atol, request.rtol, request.target, request.tf32),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()
