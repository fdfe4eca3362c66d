"""Lays out the arena and calls the candidate: writes inputs, takes the time, and reads outputs.

A gated call is queued first and waits for its gate. From then on the candidate's processes are stopped until the
results are copied. A call awake starts when its inputs are written, and its processes run until the results are copied.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from stark_worker.correctness.reference import Case, Reference
from stark_worker.correctness.traffic import reads_inputs
from stark_worker.device import cuda
from stark_worker.device.arena import ArenaAllocator, HostMemory, Job, Pairs, TensorSlot, free_bytes, nbytes, poison
from stark_worker.device.cuda_arena import DeviceMemory
from stark_worker.device.gate import Gate
from stark_worker.processes.environment import usable_cores
from stark_worker.processes.workdir import JOB_FILE, SOURCE_FILE
from stark_worker.protocol.codec import to_json
from stark_worker.protocol.errors import TaskFault
from stark_worker.protocol.request import EvalRequest
from stark_worker.referee.candidate import Candidate
from stark_worker.referee.check import Description, locate
from stark_worker.referee.hangs import Device, await_answer, call_limit_s, reference_call_s
from stark_worker.timing.measurement import CallTimes

LAUNCH_TIMEOUT_S = 0.05  # for all launches of a call; one that waits for the device exceeds any limit
DONE_TIMEOUT_S, DONE_TIMEOUT_RATIO = 0.2, 10.0  # for a gated call, and as a multiple of its time awake
SPIN_S = 0.05  # on a GPU; on the host a candidate needs all cores
MAX_PAUSE_S = 200e-6  # secret, before the probe
POOL_RATIO, MIN_POOL_BYTES, MAX_POOL_SHARE = 8, 2**30, 0.25  # of a call's bytes, and of the free memory

Message = dict[str, Any]  # from the candidate's process


class CallResult(NamedTuple):
    """Result of one call: its times, copies of the outputs, the place of its inputs, and a description of results."""

    times: CallTimes
    outputs: list[torch.Tensor]
    place: int
    description: Description


class NotGated(Exception):
    """A call did not run while its process was stopped. The text says why."""


class Caller:
    """Calls one candidate in its arena. The run time that its limits leave shrinks with every call."""

    def __init__(self, request: EvalRequest, candidate: Candidate, reference: Reference, cache: str) -> None:
        self.candidate = candidate
        self.on_host = reference.device.type == "cpu"
        self._spin_s = 0.0 if self.on_host else SPIN_S
        self.time_left_s = request.limits.run_s
        self._call_limit_s = call_limit_s(reference_call_s(reference), request.limits.run_s)
        self._settings = list(cuda.precision_settings())
        self.changed_settings: list[str] = []  # numeric settings that the candidate changed
        self.job = job = write_job(request, reference, candidate.folder, cache)
        self._memory: HostMemory | DeviceMemory
        if self.on_host:
            self._memory = HostMemory(candidate.arena, job.size)
        else:
            self._memory = DeviceMemory(job.size, request.flushes_cache)
        self.arena = arena = self._memory.arena
        self.inputs = [arena.views(slots) for slots in job.inputs]
        self._slots = arena.views(job.outputs)
        self._copies = list(map(_allocate_like, self._slots))
        for slot, tensor in zip(job.construct_tensors, reference.construct_tensors, strict=True):
            arena.view(slot).copy_(tensor)
        self.write_weights(reference.weights)

    def write_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Write weights to the arena, from where the candidate's process copies them."""
        for name, weight in weights.items():
            self.arena.view(self.job.weights[name]).copy_(weight)

    @property
    def files(self) -> Sequence[int]:
        """Files by which the candidate's process maps the arena and its gate."""
        return self._memory.files

    def close(self) -> None:
        """End the candidate first: the memory is freed only when no process has it open."""
        self.candidate.close()
        self.inputs, self._slots, self._copies = [], [], []
        del self.arena
        self._memory.close()

    def call_awake(self, case: Case) -> CallResult:
        """Call the candidate on inputs that are already written. The clock starts when its processes go on."""
        place, asked = self._choose_place(), time.perf_counter()
        with self._queued(place, case, self._slots) as memory:
            before = self._before(memory)
            probed = time.perf_counter()
            self.candidate.send(do="call", place=place, seed=case.seed, gate=0)
            message = self._await_answer("done", self._spin_s, memory.describe_work)
            done = time.perf_counter()
            memory.read()
            end = time.perf_counter()
        begin = self.candidate.went_on_s() if self.on_host else probed  # a device goes on while processes are stopped
        self.candidate.pause()
        self.time_left_s -= time.perf_counter() - asked
        times = CallTimes((end - begin) * 1e3, (done - begin) * 1e3, 0.0, *before)
        return self._result(times, place, message)

    def call_gated(self, case: Case, typical_s: float = 0.0, do: str = "call") -> CallResult:
        """Call the candidate while it is stopped; raise ``NotGated`` if its work does not run then.

        ``typical_s`` is its time awake.
        """
        place, asked = self._choose_place(), time.perf_counter()
        message, launch_ms = self._launch(do, place, case.seed)
        results = locate(message, self.job, self.arena)
        if any(map(self._is_copied, message["offsets"], self.job.outputs, self.job.is_written)):
            self._let_go(is_open=False)
            raise NotGated(
                "a result has to be copied: it lies outside the memory of torch's allocator, or is returned twice"
            )
        with self._queued(place, case, results) as memory:
            before = self._before(memory)
            begin = self._gate.open()
            done = self._gate.await_done(begin + max(DONE_TIMEOUT_S, DONE_TIMEOUT_RATIO * typical_s))
            if done is not None:
                memory.await_return()
            end = time.perf_counter()
            memory.read()
        if done is None:
            self._let_go(is_open=True)
            raise NotGated("the work did not end while its process was stopped")
        for view in results:
            poison(view)
        self.time_left_s -= end - asked
        times = CallTimes((end - begin) * 1e3, (done - begin) * 1e3, launch_ms, *before)
        return self._result(times, place, message)

    def _is_copied(self, offset: int, slot: TensorSlot, is_written: bool) -> bool:
        """True if a result was copied to its slot: constant parts of the original may be left from earlier calls."""
        return is_written and offset == slot.offset and 0 not in slot.shape

    @property
    def _gate(self) -> Gate:
        assert isinstance(self._memory, DeviceMemory)
        return self._memory.gate

    @contextlib.contextmanager
    def _queued(self, place: int, case: Case, outputs: Sequence[torch.Tensor]) -> Iterator[HostMemory | DeviceMemory]:
        """Queue the referee's own work for a call. If the call fails, let the work run before anything else."""
        self._memory.queue(self._pairs(place, case), outputs, self._pair_copies(outputs))
        try:
            yield self._memory
        finally:
            self._memory.release()

    def _before(self, memory: HostMemory | DeviceMemory) -> tuple[float, float, float]:
        """Take the steps before a call. Return the milliseconds of writing, flushing and probing."""
        writing_ms = memory.await_written()
        if not self.on_host:
            _pause()
        return writing_ms, memory.flush(), memory.probe()

    def _launch(self, do: str, place: int, seed: int) -> tuple[Message, float]:
        """Have a call queued; return the message about it, and for how many milliseconds its processes ran for it."""
        self.candidate.send(do=do, place=place, seed=seed, gate=self._gate.opened + 1)
        message = self.candidate.arrives_within("launched", LAUNCH_TIMEOUT_S)
        if message is None:
            self._gate.open()
            self._await_answer("launched")
            self._let_go(is_open=True)
            raise NotGated(f"forward() did not return within {LAUNCH_TIMEOUT_S:.2f} s while its work had to wait")
        self.candidate.pause()
        return message, (time.perf_counter() - self.candidate.went_on_s()) * 1e3

    def _let_go(self, is_open: bool) -> None:
        """Wait awake for what a gated call left behind."""
        begin = time.perf_counter()
        if not is_open:
            self._gate.open()
        self.candidate.send(do="wait")
        self._await_answer("waited")
        self.candidate.pause()
        self.time_left_s -= time.perf_counter() - begin

    def _await_answer(self, did: str, spin_s: float = 0.0, device: Device = str) -> Message:
        return await_answer(self.candidate, did, self.time_left_s, self._call_limit_s, spin_s, device)

    def _choose_place(self) -> int:
        return random.SystemRandom().randrange(len(self.inputs))

    def _pairs(self, place: int, case: Case) -> Pairs:
        views = self.inputs[place]
        if [(t.shape, t.dtype) for t in case.inputs] != [(view.shape, view.dtype) for view in views]:
            raise TaskFault("get_inputs() returns other shapes or types from call to call; they have to stay the same.")
        return list(zip(views, case.inputs, strict=True))

    def _pair_copies(self, views: Sequence[torch.Tensor]) -> Pairs:
        """Pair own memory with outputs, laid out as they are: a result may be dense in another order than its slot."""
        for number, view in enumerate(views):
            if self._copies[number].stride() != view.stride():
                self._copies[number] = _allocate_like(view)
        return list(zip(self._copies, views, strict=True))

    def _result(self, times: CallTimes, place: int, message: Message) -> CallResult:
        if isinstance(changed := message.get("changed"), list):
            self.changed_settings += [
                name for name in self._settings if name in changed and name not in self.changed_settings
            ]
        return CallResult(times, self._copies, place, message)


def _allocate_like(view: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(view.shape, view.stride(), dtype=view.dtype, device=view.device)


def _pause() -> None:
    """Spin for a secret time, so that work that starts late before the gate meets the probe."""
    until = time.perf_counter() + random.SystemRandom().uniform(0.0, MAX_PAUSE_S)
    while time.perf_counter() < until:
        pass


def write_job(request: EvalRequest, reference: Reference, folder: Path, cache: str) -> Job:
    """Lay out the arena, and write the job and the source to the candidate's folder."""
    layout, device = ArenaAllocator(), reference.device.type
    construct_tensors = layout.place_all(reference.construct_tensors)
    weights = {name: layout.place(weight) for name, weight in reference.weights.items()}
    outputs = layout.place_all(reference.outputs)
    inputs = _place_inputs(reference, layout)
    pool_offset = layout.size
    job = Job(
        entry=request.entry,
        device=device,
        dtype=str(reference.dtype).removeprefix("torch."),
        tf32=request.allows_tf32,
        threads=usable_cores(),
        construct_seed=reference.construct_seed,
        build=request.build,
        cache=cache,
        nontrivial=reference.nontrivial,
        construct=reference.construct,
        construct_tensors=construct_tensors,
        weights=weights,
        arguments=reference.arguments,
        inputs=inputs,
        outputs=outputs,
        reads_inputs=device != "cpu" and reads_inputs(reference),
        is_written=tuple(reference.writes_output),
        pool_offset=pool_offset,
        size=pool_offset + (0 if device == "cpu" else _pool_bytes(reference)),
    )
    (folder / JOB_FILE).write_text(to_json(job), encoding="utf-8")
    (folder / SOURCE_FILE).write_text(request.candidate_source, encoding="utf-8")
    return job


def _place_inputs(reference: Reference, layout: ArenaAllocator) -> tuple[tuple[TensorSlot, ...], ...]:
    """Give the inputs two places, or one if they are huge."""
    size = sum(map(nbytes, reference.first.inputs))
    places = 2 if size <= free_bytes(reference.device) // 8 else 1
    return tuple(layout.place_all(reference.first.inputs) for _ in range(places))


def _pool_bytes(reference: Reference) -> int:
    weights = sum(map(nbytes, reference.weights.values()))
    wanted = max(POOL_RATIO * reference.call_bytes, MIN_POOL_BYTES) + weights
    return int(min(wanted, MAX_POOL_SHARE * free_bytes(reference.device)))
