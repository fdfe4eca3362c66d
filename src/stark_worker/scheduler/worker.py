"""Judges requests on one machine: two fork servers, a lane for each device, and builds. No torch.

    request -> build (reader, compilers; several at a time) -> lane (referee, new candidate; one at a time) -> report

Timing needs a device exclusively, so each GPU is a lane, and so is the CPU. Several workers on one machine share a GPU
trial by trial (``device.gpu_lock``). Builds run while a GPU is timed; on the CPU they would disturb the clock, so they
wait for the lane. An unhealthy GPU is not used again while another one is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from stark_worker.compiler import cache
from stark_worker.device.gpu_lock import LOCK_DIR
from stark_worker.processes.environment import requested_architectures, usable_cores
from stark_worker.processes.handles import ForkServer
from stark_worker.processes.process_tree import hide_memory
from stark_worker.protocol.errors import GpuUnhealthy, MachineryFault
from stark_worker.protocol.report import DeviceFacts, EvalReport, Phase
from stark_worker.protocol.request import EvalRequest, Target
from stark_worker.sandbox.levels import ALLOW_WEAK
from stark_worker.scheduler import variants
from stark_worker.scheduler.builds import Builds
from stark_worker.scheduler.constants import ConstantsMissing
from stark_worker.scheduler.gauge import Gauge
from stark_worker.scheduler.lane import Lane
from stark_worker.timing.phase_clock import PhaseClock

# A process that starts CUDA listens at a socket, which confinement forbids: only a candidate's first process can use
# the GPU. torch.compile would start new compile processes that use it; forked ones already know the GPU.
INDUCTOR_BY_FORK = {"TORCHINDUCTOR_WORKER_START": "fork"}

SHOW_GPUS_HINT = "Unset it, or name the GPUs to use, as in CUDA_VISIBLE_DEVICES=0."

log = logging.getLogger(__name__)


def devices(target: Target) -> list[str]:
    """Return the devices to time on at the same time: the CPU, or each visible GPU."""
    if target is Target.CPU:
        return ["cpu"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    # CUDA numbers the present GPUs: in a container with the third GPU alone, /dev/nvidia2 is number 0.
    present = [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]
    return sorted(name for name in (visible.split(",") if visible else present) if name) or ["0"]


def hidden_gpu_reason(target: Target) -> str | None:
    """Return why the environment hides all GPUs; None if it does not."""
    if target is Target.CPU or os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        return None
    return f"The target {target} needs a GPU, and CUDA_VISIBLE_DEVICES is set to nothing, which hides all of them."


class Worker:
    """Judges requests of one target, within its async context."""

    def __init__(self, target: Target, shared: Path, allow_weak_sandbox: bool = False, locks: Path = LOCK_DIR) -> None:
        self._target, self._shared, self._allow_weak, self._locks = target, shared, allow_weak_sandbox, locks
        self._names = devices(target)
        self._uses_gpu = target is not Target.CPU
        builders = usable_cores() // 2 if self._uses_gpu else 0  # build while others are timed
        self.slots = len(self._names) + builders
        self._facts: DeviceFacts | None = None
        self._measuring = asyncio.Lock()

    async def __aenter__(self) -> Self:
        if why := hidden_gpu_reason(self._target):
            raise MachineryFault(f"{why} {SHOW_GPUS_HINT}")
        hide_memory()  # this process may hold keys, and a candidate may be the same user
        folder = self._open_folders()
        environment = {ALLOW_WEAK: "yes"} if self._allow_weak else {}
        environment |= INDUCTOR_BY_FORK if self._uses_gpu else {}
        # The referee's idle threads must take no time from the candidate; the candidate's keep their default.
        self._trusted = ForkServer(folder, {"OMP_WAIT_POLICY": "passive", **environment})
        self._untrusted = ForkServer(folder, environment)
        self._gauge = Gauge(self._trusted, self._target, folder, self._shared)
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

    def _open_folders(self) -> Path:
        """Make the cache and the work folder. Lock the latter, so that it is not deleted as old after idle days."""
        try:
            cache.ensure(self._shared)  # a missing folder cannot be opened to a confined process
            self._folder = tempfile.TemporaryDirectory(prefix="stark-", ignore_cleanup_errors=True)
            self._claim = os.open(self._folder.name, os.O_RDONLY)
        except OSError as error:
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            remedy = "Set TMPDIR or XDG_CACHE_HOME to a folder to write in."
            raise MachineryFault(f"There is no place to work in ({what}). {remedy}") from error
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(self._claim, fcntl.LOCK_SH)
        return Path(self._folder.name)

    async def device(self) -> DeviceFacts:
        """Measure the device once, and return its facts."""
        async with self._measuring:
            if self._facts is None:
                async with self._lane() as lane:
                    self._facts = await self._gauge.facts(lane.environment)
            return self._facts

    async def judge(self, request: EvalRequest, on_phase: Callable[[Phase], None] = lambda phase: None) -> EvalReport:
        """Build, check and time a candidate. Raise faults that are not the candidate's."""
        if request.target.device_kind != self._target.device_kind:
            raise MachineryFault(
                f"This worker serves the target {self._target}; the request is for {request.target}, which runs on "
                f"another kind of device. Start a worker with --target {request.target}."
            )
        clock = PhaseClock(Phase.QUEUE)

        def begin(phase: Phase) -> None:
            clock.begin(phase)
            on_phase(phase)

        return clock.add_to(await self._judge(request, begin))

    async def _judge(self, request: EvalRequest, begin: Callable[[Phase], None]) -> EvalReport:
        try:
            requests = variants.split(request)
        except ConstantsMissing as fault:
            return variants.refuse(fault)
        built = None
        if self._uses_gpu:
            begin(Phase.BUILD)
            built = await variants.build_all(requests, self._build)
            if built[0] and len(built) == 1:  # no device is needed
                return built[0]
        begin(Phase.QUEUE)
        async with self._lane() as lane:
            if built is None:  # compiling would disturb the clock of the CPU
                begin(Phase.BUILD)
                built = await variants.build_all(requests, self._build)
            begin(Phase.START)
            return await variants.judge_all(request, requests, built, self._judge_on(lane))

    def _judge_on(self, lane: Lane) -> variants.Judge:
        """Return the way to judge on a lane. The bound in a reference's report needs the peaks of its device."""

        async def judge(request: EvalRequest) -> EvalReport:
            peaks = await self._gauge.peaks(lane.environment) if request.is_reference else None
            return await lane.judge(request, peaks)

        return judge

    async def _build(self, request: EvalRequest) -> EvalReport | None:
        """Build the candidate's extensions; return a report if that fails."""
        if self._builds is None:
            more = await self._architecture() if self._uses_gpu else {}
            self._builds = Builds(self._untrusted, Path(self._folder.name), self._shared, more)
        return await self._builds.build(request)

    async def _architecture(self) -> dict[str, str]:
        """Return the variable that names this GPU's architecture, for processes that cannot see the GPU.

        Keep the user's own TORCH_CUDA_ARCH_LIST, but ignore one that lists several: candidates run only on this GPU.
        """
        if len(requested_architectures()) == 1:
            return {}
        number = ((await self.device()).architecture or "").removeprefix("sm_")
        return {"TORCH_CUDA_ARCH_LIST": f"{number[:-1]}.{number[-1]}"} if number.isdigit() else {}

    @contextlib.asynccontextmanager
    async def _lane(self) -> AsyncIterator[Lane]:
        """Hold a free lane and its device. Drop the lane if its GPU is unhealthy and another lane is left."""
        lane, usable = await self._lanes.get(), True
        try:
            async with lane.hold_device():
                yield lane
        except GpuUnhealthy as fault:
            if self._healthy > 1:
                usable = False
                self._healthy -= 1
                log.warning("GPU %s is unhealthy and will not be used again: %s", lane.name, fault)
                await lane.close()
            raise
        finally:
            if usable:
                self._lanes.put_nowait(lane)
