"""Lays out the arena and calls the candidate: writes inputs, takes the time, and reads outputs."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from stark_worker.correctness.reference import Case, Reference
from stark_worker.device.arena import ArenaAllocator, HostMemory, Job, WriteEnd, copy_into, free_bytes, poison
from stark_worker.device.cuda_arena import DeviceMemory
from stark_worker.processes.environment import usable_cores
from stark_worker.processes.workdir import JOB_FILE, SOURCE_FILE
from stark_worker.protocol.codec import to_json
from stark_worker.protocol.errors import Failure, Outcome, TaskFault
from stark_worker.protocol.report import Check
from stark_worker.protocol.request import EvalRequest
from stark_worker.referee.candidate import Candidate
from stark_worker.referee.check import Description
from stark_worker.timing.device_clock import read_device_ms
from stark_worker.timing.sample import Sample

MAX_HOST_BURST, MAX_HOST_BURST_BYTES = 16, 2**28  # calls of one burst, and memory for them
MAX_DEVICE_BURST, MAX_DEVICE_BURST_BYTES = 64, 2**34
LAUNCH_TIMEOUT_S = 0.02  # for all launches; a candidate that waits for the device in between exceeds any limit

Message = dict[str, Any]  # from the candidate's process
Calls = list[tuple[int, int]]  # places and seeds


class CallResult(NamedTuple):
    """Result of one request: its times, the outputs that were read, and the distinct descriptions of results."""

    sample: Sample
    outputs: list[list[torch.Tensor]]
    descriptions: list[Description]


class Caller:
    """Calls one candidate in its arena. The run time that its limits leave shrinks with every call."""

    def __init__(
        self, request: EvalRequest, candidate: Candidate, reference: Reference, cache: str, checks: dict[str, str]
    ) -> None:
        self.candidate, self._checks = candidate, checks
        self.on_host = reference.device.type == "cpu"
        self.is_gated = not self.on_host  # calls are launched before their inputs are written
        self.counts_write_delay = True
        self.time_left_s = request.limits.run_s
        self.last_place = 0  # the place that was written last
        self._host_copies: dict[int, list[torch.Tensor]] = {}
        self.job = job = write_job(request, reference, candidate.folder, cache)
        self._memory: HostMemory | DeviceMemory
        if self.on_host:
            self._memory = HostMemory(candidate.arena, job.size)
        else:
            self._memory = DeviceMemory(job.size, request.flushes_cache)
        arena = self._memory.arena
        self.inputs = [arena.views(slots) for slots in job.inputs]
        self._outputs = [arena.views(slots) for slots in job.outputs]
        for slot, tensor in zip(job.construct_tensors, reference.construct_tensors, strict=True):
            arena.view(slot).copy_(tensor)
        for name, weight in reference.weights.items():
            arena.view(job.weights[name]).copy_(weight)

    def close(self) -> None:
        """End the candidate first: the memory is freed only when no process has it open."""
        self.candidate.close()
        self.inputs, self._outputs, self._host_copies = [], [], {}
        self._memory.close()

    @property
    def places(self) -> int:
        """Number of places for inputs and outputs: the greatest burst length."""
        return len(self.inputs)

    @property
    def files(self) -> list[int]:
        """Descriptors that the candidate's process needs to open the arena."""
        return list(self._memory.files)

    def call(self, calls: Calls, inputs: Mapping[int, Case], read: Collection[int] = ()) -> CallResult:
        """Make one request, and take its time off what the candidate has left.

        ``inputs`` are written to their places. Outputs at the places ``read`` are read as soon as they are handed over.
        With a gate the candidate launches its work first, and the work waits for the inputs; otherwise the inputs come
        first. The candidate is stopped while inputs are written, while outputs are read, and between calls.
        """
        asked, launch_ms = time.perf_counter(), 0.0
        until = asked + self.time_left_s
        if self.is_gated:
            self.candidate.send(do="call", calls=calls, gate=self._memory.opened + 1)
            launched = self.candidate.arrives_within("launched", LAUNCH_TIMEOUT_S)
            launch_ms = (time.perf_counter() - asked) * 1e3
            self.candidate.pause()
            begin, writing_ms = self.write(inputs)
            self.candidate.resume()
        else:
            begin, writing_ms = self.write(inputs)
            self.candidate.send(do="call", calls=calls, gate=self._memory.opened)
            launched = self.on_host
        if not launched:
            self.candidate.expect("launched", until - time.perf_counter())
        self.candidate.expect("done", until - time.perf_counter())
        done = time.perf_counter()
        message = self.candidate.expect("copied" if self.on_host else "looked", until - done)
        end = time.perf_counter()
        self.time_left_s -= end - asked
        self.candidate.pause()
        outputs, own_copy_ms = self._read(read) if read else ([], 0.0)
        if self.on_host:
            message = self._await_description()
        descriptions = self._descriptions(message)
        sample = Sample(
            forward_ms=(done - begin) * 1e3,
            late_ms=(end - done) * 1e3,
            own_copy_ms=own_copy_ms,
            device_ms=None if self.on_host else read_device_ms(message.get("device_ms"), len(calls)),
            length=len(calls),
            launch_ms=launch_ms,
            writing_ms=writing_ms if self.counts_write_delay else 0.0,
        )
        return CallResult(sample, outputs, descriptions)

    def _await_description(self) -> Message:
        """Wait for the description of results that were already read."""
        begin = time.perf_counter()
        self.candidate.resume()
        message = self.candidate.expect("looked", self.time_left_s)
        self.time_left_s -= time.perf_counter() - begin
        self.candidate.pause()
        return message

    def _descriptions(self, message: Message) -> list[Description]:
        descriptions, changed = message.get("looks"), message.get("changed")
        if not isinstance(descriptions, list) or not all(isinstance(each, dict) for each in descriptions):
            raise Failure(Outcome.REJECTED, "The results were not described.", "forged_message")
        if changed:
            self._checks[Check.PRECISION] = f"the candidate changed {str(changed)[:200]}; reset before every call"
        return descriptions

    def write(self, inputs: Mapping[int, Case]) -> WriteEnd:
        """Write inputs to their places and poison the outputs there."""

        def write() -> None:
            for place, case in inputs.items():
                self._write(place, case)

        return self._memory.begin(write)

    def _write(self, place: int, case: Case) -> None:
        inputs = self.inputs[place]
        if [(t.shape, t.dtype) for t in case.inputs] != [(view.shape, view.dtype) for view in inputs]:
            raise TaskFault("get_inputs() returns other shapes or types from call to call; they have to stay the same.")
        for view, tensor in zip(inputs, case.inputs, strict=True):
            self._memory.write(view, tensor)
        for view in self._outputs[place]:
            poison(view)
        self.last_place = place

    def _read(self, places: Collection[int]) -> tuple[list[list[torch.Tensor]], float]:
        """Copy the outputs at some places; return them and the time it took."""
        begin = time.perf_counter()
        outputs = [self._copy_outputs(place) for place in places]
        self._memory.wait()
        return outputs, (time.perf_counter() - begin) * 1e3

    def _copy_outputs(self, place: int) -> list[torch.Tensor]:
        """Copy the outputs at a place. On the host reuse the memory, so that only the copy takes time."""
        if not self.on_host:
            return [output.clone() for output in self._outputs[place]]
        if place not in self._host_copies:
            self._host_copies[place] = [output.clone() for output in self._outputs[place]]
        for mine, output in zip(self._host_copies[place], self._outputs[place], strict=True):
            copy_into(mine, output)
        return self._host_copies[place]


def write_job(request: EvalRequest, reference: Reference, folder: Path, cache: str) -> Job:
    """Lay out the arena, and write the job and the source to the candidate's folder."""
    layout, device = ArenaAllocator(), reference.device.type
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
        construct_tensors=layout.place_all(reference.construct_tensors),
        weights={name: layout.place(weight) for name, weight in reference.weights.items()},
        arguments=reference.arguments,
        inputs=(layout.place_all(reference.first.inputs),),
        outputs=(layout.place_all(reference.outputs),),
        size=layout.size,  # last, when all places are known
    )
    job = add_burst_places(job, reference, layout)
    (folder / JOB_FILE).write_text(to_json(job), encoding="utf-8")
    (folder / SOURCE_FILE).write_text(request.candidate_source, encoding="utf-8")
    return job


def add_burst_places(job: Job, reference: Reference, layout: ArenaAllocator) -> Job:
    """Add places for bursts, each with its own inputs and outputs; none if these are huge."""
    one = layout.size - job.inputs[0][0].offset if job.inputs[0] else layout.size
    on_host = job.device == "cpu"
    most, room = (MAX_HOST_BURST, MAX_HOST_BURST_BYTES) if on_host else (MAX_DEVICE_BURST, MAX_DEVICE_BURST_BYTES)
    more = min(min(room, free_bytes(reference.device) // 8) // one, most) - 1
    inputs, outputs = list(job.inputs), list(job.outputs)
    for _ in range(more):
        inputs.append(layout.place_all(reference.first.inputs))
        outputs.append(layout.place_all(reference.outputs))
    return replace(job, inputs=tuple(inputs), outputs=tuple(outputs), size=layout.size)
