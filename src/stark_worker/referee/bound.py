"""Finds the bound of a task: traces one call of its reference, and compares the work with the device's peaks."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch

from stark_worker.correctness.reference import Reference
from stark_worker.correctness.traffic import certain_bytes
from stark_worker.device.arena import nbytes
from stark_worker.protocol.bound import Bound, Peaks, Reason, Work
from stark_worker.protocol.errors import TaskFault
from stark_worker.protocol.report import Timing
from stark_worker.protocol.request import EvalRequest
from stark_worker.roofline.speed_of_light import Conditions, Suspicion, make_bound
from stark_worker.roofline.trace import Trace, trace_call
from stark_worker.roofline.work import least_work

PROVEN_SHARE = 0.5  # of the bytes of inputs, that changed inputs have to show to matter


def find_bound(request: EvalRequest, reference: Reference, timing: Timing, peaks: Peaks) -> Bound:
    """Return the bound of a task whose reference was just timed. It takes a call of the reference."""
    on_host = reference.device.type == "cpu"
    try:
        work, suspicions = least_work(_trace(reference), request.allows_tf32)
    except (TaskFault, RuntimeError) as error:  # it does not run under a tracer, or a second copy does not fit
        work, suspicions = _untraced_work(reference), (Suspicion(Reason.UNTRACED, f"{error}"[:100]),)
    if not on_host:
        suspicions = (*suspicions, *_unproven(reference, work))
    return make_bound(work, peaks, suspicions, Conditions(not on_host and request.flushes_cache, timing.unsure_ms))


def _trace(reference: Reference) -> Trace:
    """Trace a call on the task's own inputs, of a copy: a call may change the model."""
    case = reference.first
    model = copy.deepcopy(reference.model)
    given = [tensor.clone() for tensor in case.inputs]
    return trace_call(lambda: reference.run_on(model, given, case.seed), given, _kept_tensors(model))


def _kept_tensors(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield weights, buffers and tensors that modules keep in attributes."""
    yield from (*model.parameters(), *model.buffers())
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, torch.Tensor))


def _untraced_work(reference: Reference) -> Work:
    weights = sum(map(nbytes, reference.model.state_dict().values()))
    return Work(sum(map(nbytes, reference.first.inputs)), weights, sum(map(nbytes, reference.outputs)), {})


def _unproven(reference: Reference, work: Work) -> tuple[Suspicion, ...]:
    """Suspect inputs that are read although changing them was not seen to matter. The floor is known on a GPU."""
    proven = certain_bytes(reference).read
    if proven >= PROVEN_SHARE * work.input_bytes:
        return ()
    return (Suspicion(Reason.UNPROVEN, bytes=work.input_bytes - proven),)
