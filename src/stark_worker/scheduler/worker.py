"""Everything that judges on one machine: two fork servers, a lane for each device, and builds beside the lanes. No torch.

    request -> built (reader, compilers; many at once) -> lane (referee and a fresh candidate; one at a time) -> report

Timing needs its device for itself, so each GPU is a lane, and so is the CPU. Other workers on the machine have lanes
of their own: on a GPU they take turns, trial by trial (``turns``). Builds run beside the GPUs; on the CPU,
where they would disturb the clock, they take their turn in the lane. A GPU that is left unhealthy is not used again
while there is another.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

from stark_worker.compiler import cache
from stark_worker.device.gpu_lock import LOCK_DIR
from stark_worker.processes.channel import ChannelClosed
from stark_worker.processes.environment import usable_cores
from stark_worker.processes.handles import ForkServer, ProcessHandle
from stark_worker.processes.process_tree import hide_memory
from stark_worker.protocol.codec import from_json
from stark_worker.protocol.errors import GpuUnhealthy, MachineryFault
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import EvalRequest, Target
from stark_worker.sandbox.levels import ALLOW_WEAK
from stark_worker.scheduler.builds import Builds
from stark_worker.scheduler.lane import Lane

DEVICE_S = 120.0
# To start CUDA a process has to listen at a socket, which is refused to whoever is confined: of a candidate only its
# first process can use the GPU. torch.compile would compile in new ones that ask for the GPU; forked ones know it.
INDUCTOR_BY_FORK = {"TORCHINDUCTOR_WORKER_START": "fork"}

SHOW_GPUS_HINT = "Unset it, or name the GPUs to use, as in CUDA_VISIBLE_DEVICES=0."

log = logging.getLogger(__name__)


def devices(target: Target) -> list[str]:
    """What candidates can be timed on beside each other: the CPU is one, and each visible GPU."""
    if target is Target.CPU:
        return ["cpu"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    # CUDA counts what is there: a container that was given the third GPU alone has /dev/nvidia2, and it is number 0.
    present = [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]
    return sorted(name for name in (visible.split(",") if visible else present) if name) or ["0"]


def hidden_gpu_reason(target: Target) -> str | None:
    """Why no GPU can be used whatever the machine has; None where one may be."""
    if target is Target.CPU or os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        return None
    return f"The target {target} needs a GPU, and CUDA_VISIBLE_DEVICES is set to nothing, which hides all of them."


class Worker:
    """Judges requests of one target for as long as it is entered."""

    def __init__(self, target: Target, shared: Path, allow_weak_sandbox: bool = False, locks: Path = LOCK_DIR) -> None:
        self._target, self._shared, self._allow_weak, self._locks = target, shared, allow_weak_sandbox, locks
        self._names = devices(target)
        self._beside = target is not Target.CPU
        self.slots = len(self._names) + (
            usable_cores() // 2 if self._beside else 0
        )  # some build while others are timed
        self._facts: DeviceFacts | None = None
        self._asking = asyncio.Lock()

    async def __aenter__(self) -> Self:
        if why := hidden_gpu_reason(self._target):
            raise MachineryFault(f"{why} {SHOW_GPUS_HINT}")
        hide_memory()  # this process may hold keys, and a candidate may be the same user
        try:
            cache.ensure(self._shared)  # what is not there cannot be opened to a confined process
            self._folder = tempfile.TemporaryDirectory(prefix="stark-", ignore_cleanup_errors=True)
            self._claim = os.open(self._folder.name, os.O_RDONLY)
        except OSError as error:
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            remedy = "Set TMPDIR or XDG_CACHE_HOME to a folder to write in."
            raise MachineryFault(f"There is no place to work in ({what}). {remedy}") from error
        folder = Path(self._folder.name)
        with contextlib.suppress(OSError):  # some file systems have no locks
            # or it is cleaned up as an old one when nothing was judged for days
            fcntl.flock(self._claim, fcntl.LOCK_SH)
        told = {ALLOW_WEAK: "yes"} if self._allow_weak else {}
        told |= INDUCTOR_BY_FORK if self._beside else {}
        # The referee's idle threads take no time from the candidate; the candidate's wait as they would anywhere.
        self._trusted = ForkServer(folder, {"OMP_WAIT_POLICY": "passive", **told})
        self._untrusted = ForkServer(folder, told)
        self._lanes = asyncio.Queue[Lane]()
        for name in self._names:
            self._lanes.put_nowait(Lane(name, self._trusted, self._untrusted, folder, self._shared, self._locks))
        self._healthy = len(self._names)
        self._builds: Builds | None = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while not self._lanes.empty():
            await self._lanes.get_nowait().close()
        await asyncio.gather(self._trusted.close(), self._untrusted.close())
        os.close(self._claim)
        await asyncio.to_thread(self._folder.cleanup)

    async def device(self) -> DeviceFacts:
        """What kernels run on, asked once."""
        async with self._asking:
            if self._facts is None:
                async with self._lane() as lane:
                    self._facts = await self._measure_device(lane)
            return self._facts

    async def judge(self, request: EvalRequest) -> EvalReport:
        """One report. What is no fault of the candidate's is raised."""
        if request.target.device_kind != self._target.device_kind:
            raise MachineryFault(
                f"This worker serves the target {self._target} and was asked for {request.target}, which runs on "
                f"another kind of device. Start it with --target {request.target}, or ask for {self._target}."
            )
        if not self._beside:
            async with self._lane() as lane:
                return await self._build(request) or await lane.judge(request)
        if failed := await self._build(request):
            return failed
        async with self._lane() as lane:
            return await lane.judge(request)

    async def _build(self, request: EvalRequest) -> EvalReport | None:
        """None when the candidate is built; otherwise why it cannot be."""
        if self._builds is None:
            more = await self._architecture() if self._beside else {}
            self._builds = Builds(self._untrusted, Path(self._folder.name), self._shared, more)
        return await self._builds.build(request)

    async def _architecture(self) -> dict[str, str]:
        """What to compile for, told to processes that cannot see the device, unless the user has said it. Who named
        several, as some containers do, did not mean candidates, which run here alone."""
        if len(os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()) == 1:
            return {}
        number = ((await self.device()).architecture or "").removeprefix("sm_")
        return {"TORCH_CUDA_ARCH_LIST": f"{number[:-1]}.{number[-1]}"} if number.isdigit() else {}

    @contextlib.asynccontextmanager
    async def _lane(self) -> AsyncIterator[Lane]:
        """A lane for oneself, and its device. Both are free again afterwards, unless the GPU is unhealthy and there is
        another."""
        lane, usable = await self._lanes.get(), True
        try:
            async with lane.alone():
                yield lane
        except GpuUnhealthy as fault:
            if self._healthy > 1:
                usable = False
                self._healthy -= 1
                log.warning("GPU %s is unhealthy and is not used any more: %s", lane.name, fault)
                await lane.close()
            raise
        finally:
            if usable:
                self._lanes.put_nowait(lane)

    async def _measure_device(self, lane: Lane) -> DeviceFacts:
        folder = Path(tempfile.mkdtemp(prefix="device-", dir=self._folder.name))
        async with ProcessHandle(self._trusted, "device", folder, lane.environment) as handle:
            try:
                async with asyncio.timeout(DEVICE_S):
                    handle.channel.send(target=self._target)
                    said = await handle.expect("measured", "failed")
            except (ChannelClosed, TimeoutError) as error:
                raise MachineryFault(f"The device could not be measured. {handle.last_output()}") from error
            if said["did"] == "failed":
                raise MachineryFault(str(said["text"]))
            return from_json(DeviceFacts, said["facts"])
