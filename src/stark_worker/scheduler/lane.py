"""One device with its processes: a warm referee for each recent task, a new candidate process for each trial.

No torch: referee and candidate are separate processes. The lane hands the referee its ends of the candidate's channel.
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
from stark_worker.protocol.bound import Peaks
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.errors import MachineryFault, RefereeDied, RefereeSilent, make_fault
from stark_worker.protocol.report import Check, EvalReport
from stark_worker.protocol.request import EXTRA_SHAPE_S, EXTRA_SHAPES, EvalRequest
from stark_worker.scheduler.slot import CandidateSlot

MAX_WARM_REFEREES = 2  # one for each recent task
REFERENCE_SLACK_S = 120.0  # for the reference, and for cleaning up


class Lane:
    """Judges on one device, one request at a time."""

    def __init__(
        self, name: str, trusted: ForkServer, untrusted: ForkServer, folder: Path, shared: Path, locks: Path = LOCK_DIR
    ) -> None:
        self.name = name
        self.environment = {} if name == "cpu" else {"CUDA_VISIBLE_DEVICES": name}
        self._trusted, self._untrusted = trusted, untrusted
        self._folder, self._shared, self._locks = folder, shared, locks
        self._gpu_lock: GpuLock | None = None
        self._unlocked_reason: str | None = None  # why other processes may use the GPU at the same time
        self._referees = OrderedDict[str, ProcessHandle]()  # the latest last
        # A referee without a task and a process without a candidate: starting CUDA takes longer than many trials.
        self._spare: ProcessHandle | None = None
        self._spare_slot: CandidateSlot | None = None

    @contextlib.asynccontextmanager
    async def hold_device(self) -> AsyncIterator[None]:
        """Wait for the GPU's lock and hold it, so that no other worker measures there. The CPU has none."""
        if self.name == "cpu":
            yield
            return
        if self._gpu_lock is None:
            device = await gpu_identity(self.name, child_environment(self._folder, self.environment))
            self._gpu_lock = GpuLock(device, self.name, self._locks)
        async with self._gpu_lock.hold() as self._unlocked_reason:
            yield

    async def judge(self, request: EvalRequest, peaks: Peaks | None = None) -> EvalReport:
        """Run one trial. The peaks of the device are needed for the bound of a reference.

        All processes of the trial have ended when this returns; their folders are removed later.
        """
        if self.name == "cpu":  # processes that are still ending would take its time
            await self._untrusted.reaper.wait()
        slots: list[CandidateSlot] = []
        try:
            return await self._judge(request, peaks, slots)
        finally:
            for slot in slots:
                slot.remove()
            await asyncio.gather(*(asyncio.shield(slot.end()) for slot in slots))

    async def _judge(self, request: EvalRequest, peaks: Peaks | None, slots: list[CandidateSlot]) -> EvalReport:
        """Take a warm or new referee, and keep it unless its trial was cut short."""
        key = referee_key(request)
        referee = None if request.untrusted_task else self._referees.pop(key, None) or self._take_spare()
        referee = referee or self._new_referee()
        async with contextlib.AsyncExitStack() as unless_it_answers:
            unless_it_answers.push_async_callback(referee.close)
            report = await self._trial(referee, request, peaks, slots)
            if self._unlocked_reason:
                exclusive = {Check.EXCLUSIVE: f"not known: {self._unlocked_reason}"}
                report = replace(report, checks=report.checks | exclusive)
            if request.untrusted_task:  # a referee that loaded it is not trusted with other tasks
                return report
            unless_it_answers.pop_all()
        self._referees[key] = referee
        while len(self._referees) > MAX_WARM_REFEREES:
            await self._referees.popitem(last=False)[1].close()
        if self._gpu_lock and not self._gpu_lock.has_waiters():  # starting spares would disturb their timing
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
        """Start a spare referee and a spare slot. Ignore failures: they appear again when one is needed."""
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

    async def _trial(
        self, referee: ProcessHandle, request: EvalRequest, peaks: Peaks | None, slots: list[CandidateSlot]
    ) -> EvalReport:
        """Let the referee judge the request. The caller removes the slots that this appends."""
        sides, shapes = 1 if request.opponent_source is None else 2, EXTRA_SHAPES if request.with_labels else 0
        deadline_s = (
            sides * (request.limits.build_s + request.limits.run_s) + shapes * 2 * EXTRA_SHAPE_S + REFERENCE_SLACK_S
        )
        (referee.folder / REQUEST_FILE).write_text(to_json(request), encoding="utf-8")
        try:
            for _ in range(sides + shapes):
                slots.append(self._take_slot(waits=request.untrusted_task))
            ends, folders = [end for slot in slots for end in slot.ends], [str(slot.folder) for slot in slots]
            known = to_json(peaks) if peaks else None
            referee.channel.send(files=ends, do="judge", folders=folders, cache=str(self._shared), peaks=known)
            for slot in slots:
                slot.release()
            async with asyncio.timeout(deadline_s):
                answer = await referee.expect("judged", "failed")
        except ChannelClosed as error:
            raise RefereeDied(f"The referee ended without an answer. {referee.last_output()}") from error
        except TimeoutError:
            raise RefereeSilent(
                f"No answer within {deadline_s:.0f} s, which is more than the candidate may take."
            ) from None
        finally:
            for slot in slots:
                slot.end()
        if answer["did"] == "failed":
            raise make_fault(answer.get("fault"), answer.get("text"))
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
    """Return a key that is equal for requests that one referee can judge."""
    parts = (
        *(request.task_source, request.precision, request.score, request.kernelbench_version),
        *(request.atol, request.rtol, request.target, request.tf32),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()
