"""What the referee tells the candidate's process before that loads anything, and where everything lies in the arena."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stark_worker.correctness.reference import Reference
from stark_worker.device.arena import ArenaAllocator, Job, free_bytes
from stark_worker.processes.environment import usable_cores
from stark_worker.processes.workdir import JOB_FILE, SOURCE_FILE
from stark_worker.protocol.codec import to_json
from stark_worker.protocol.request import EvalRequest

MAX_HOST_BURST, MAX_HOST_BURST_BYTES = 16, 2**28  # calls in a row at most, and memory for them
MAX_DEVICE_BURST, MAX_DEVICE_BURST_BYTES = 64, 2**34


def write_job(request: EvalRequest, reference: Reference, folder: Path, cache: str) -> Job:
    """Lay out the arena and put into the candidate's folder what its process needs to know."""
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
    """Room for several calls in a row, each with inputs and outputs of its own; none where these are huge."""
    one = layout.size - job.inputs[0][0].offset if job.inputs[0] else layout.size
    on_host = job.device == "cpu"
    most, room = (MAX_HOST_BURST, MAX_HOST_BURST_BYTES) if on_host else (MAX_DEVICE_BURST, MAX_DEVICE_BURST_BYTES)
    more = min(min(room, free_bytes(reference.device) // 8) // one, most) - 1
    inputs, outputs = list(job.inputs), list(job.outputs)
    for _ in range(more):
        inputs.append(layout.place_all(reference.first.inputs))
        outputs.append(layout.place_all(reference.outputs))
    return replace(job, inputs=tuple(inputs), outputs=tuple(outputs), size=layout.size)
