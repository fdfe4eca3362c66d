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

from stark_worker.device.gpu_lock import PLACE, Turns, identity
from stark_worker.processes.channel import ChannelClosed
from stark_worker.processes.environment import environment as environment_of
from stark_worker.processes.handles import Nursery, Ward
from stark_worker.processes.workdir import REPORT_FILE, REQUEST_FILE, read_plainly
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.errors import MachineryFault, RefereeDied, RefereeSilent, fault_of
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import SHAPE_S, SHAPES, EvalRequest
from stark_worker.scheduler.slot import Seat

KEPT = 2  # referees, each of another task


SLACK_S = 120.0  # for the reference, and for cleaning up


UNHEALTHY = "GPU unhealthy"  # what a referee says of a device that failed its health check


class Lane:
    """Whoever has it may judge on its device."""

    def __init__(
        self, name: str, trusted: Nursery, untrusted: Nursery, folder: Path, shared: Path, locks: Path = PLACE
    ) -> None:
        self.name = name
        self.environment = {} if name == "cpu" else {"CUDA_VISIBLE_DEVICES": name}
        self._trusted, self._untrusted = trusted, untrusted
        self._folder, self._shared, self._locks = folder, shared, locks
        self._turns: Turns | None = None
        self._not_alone: str | None = None  # why others may be measuring too
        self._referees = OrderedDict[str, Ward]()  # the latest last
        # A referee of no task and a process of no candidate yet: to start CUDA takes longer than many trials.
        self._spare: Ward | None = None
        self._spare_seat: Seat | None = None

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Keep other processes from measuring on this device; it may be their turn first. The CPU is everybody's."""
        if self.name == "cpu":
            yield
            return
        if self._turns is None:
            device = await identity(self.name, environment_of(self._folder, self.environment))
            self._turns = Turns(device, self.name, self._locks)
        async with self._turns.alone() as self._not_alone:
            yield

    async def judge(self, request: EvalRequest) -> EvalReport:
        """One trial. What is left of it has ended when this returns, and is removed afterwards."""
        if self.name == "cpu":  # which would have less time for whoever is timed
            await self._untrusted.remains.gone()
        seats: list[Seat] = []
        try:
            return await self._judged(request, seats)
        finally:
            for seat in seats:
                seat.remove()
            await asyncio.gather(*(asyncio.shield(seat.end()) for seat in seats))

    async def _judged(self, request: EvalRequest, seats: list[Seat]) -> EvalReport:
        """A referee whose trial was cut short is not used again."""
        key = _bench(request)
        referee = None if request.stranger else self._referees.pop(key, None) or self._take_spare()
        referee = referee or self._new_referee()
        async with contextlib.AsyncExitStack() as unless_it_answers:
            unless_it_answers.push_async_callback(referee.close)
            report = await self._trial(referee, request, seats)
            if self._not_alone:
                report = replace(report, checks=report.checks | {"exclusive": f"not known: {self._not_alone}"})
            if request.stranger:  # whoever loaded that is trusted with nothing else
                return report
            unless_it_answers.pop_all()
        self._referees[key] = referee
        while len(self._referees) > KEPT:
            await self._referees.popitem(last=False)[1].close()
        if self._turns and not self._turns.somebody_waits():  # whose turn it would disturb
            self._provide_spares()
        return report

    async def close(self) -> None:
        if spare := self._take_spare():
            await spare.close()
        if self._spare_seat is not None:
            self._spare_seat.remove()
            self._spare_seat = None
        while self._referees:
            await self._referees.popitem()[1].close()

    def _provide_spares(self) -> None:
        """What cannot be provided now is made when it is needed, and fails there if it has to."""
        with contextlib.suppress(MachineryFault, ChannelClosed, OSError):
            self._spare_seat = self._spare_seat or self._new_seat()
            if self._spare is None:
                self._spare = self._new_referee()
                self._spare.channel.send(do="start")

    def _take_spare(self) -> Ward | None:
        spare, self._spare = self._spare, None
        return spare

    def _new_referee(self) -> Ward:
        folder = Path(tempfile.mkdtemp(prefix="referee-", dir=self._folder))
        return Ward(self._trusted, "referee", folder, self.environment)

    async def _trial(self, referee: Ward, request: EvalRequest, seats: list[Seat]) -> EvalReport:
        """The seats it takes are the caller's to remove."""
        sides, shapes = 1 if request.rival_source is None else 2, SHAPES if request.labelled else 0
        deadline_s = sides * (request.limits.build_s + request.limits.run_s) + shapes * 2 * SHAPE_S + SLACK_S
        (referee.folder / REQUEST_FILE).write_text(to_json(request), encoding="utf-8")
        try:
            for _ in range(sides + shapes):
                seats.append(self._take_seat(waits=request.stranger))
            ends, folders = [end for seat in seats for end in seat.ends], [str(seat.folder) for seat in seats]
            referee.channel.send(files=ends, do="judge", folders=folders, cache=str(self._shared))
            for seat in seats:
                seat.release()
            async with asyncio.timeout(deadline_s):
                said = await referee.says("judged", "failed")
        except ChannelClosed as error:
            raise RefereeDied(f"The referee ended without an answer. {referee.last_words()}") from error
        except TimeoutError:
            raise RefereeSilent(
                f"No answer within {deadline_s:.0f} s, which is more than the candidate may take."
            ) from None
        finally:
            for seat in seats:
                seat.end()
        if said["did"] == "failed":
            raise fault_of(said.get("fault"), said.get("text"))
        return from_json(EvalReport, read_plainly(referee.folder / REPORT_FILE))

    def _take_seat(self, waits: bool) -> Seat:
        if waits or self._spare_seat is None:
            return self._new_seat(waits)
        seat, self._spare_seat = self._spare_seat, None
        if seat.is_alive():
            return seat
        seat.remove()
        return self._new_seat()

    def _new_seat(self, waits: bool = False) -> Seat:
        order = {"gpu": self.name != "cpu", "waits": waits, "cache": str(self._shared)}
        return Seat(self._untrusted, self._folder, self.environment, order)


def _bench(request: EvalRequest) -> str:
    """Requests that one referee can judge one after another."""
    parts = (
        *(request.task_source, request.precision, request.score, request.kernelbench_version),
        *(request.atol, request.rtol, request.target, request.tf32),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()
