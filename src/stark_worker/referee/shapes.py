"""Tries a candidate on inputs of other sizes than the task's: a label, and never a reason to refuse it.

The batch becomes twice as large, one, and half as large, always odd, if the reference takes such inputs. Kernels for
one shape often fail on sizes that do not divide evenly. If the batch is fixed, the last dimension changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from stark_worker.correctness.reference import Reference
from stark_worker.protocol.errors import Failure, MachineryFault, TaskFault
from stark_worker.protocol.interface import RIGHT, ShapeTrial
from stark_worker.protocol.report import Phase
from stark_worker.protocol.request import EXTRA_SHAPE_S, EvalRequest, Limits
from stark_worker.referee.candidate import Candidate
from stark_worker.referee.trial import Trial
from stark_worker.timing.phase_clock import PhaseClock

NOT_TRIED = "not tried"


@dataclass(frozen=True)
class Resize:
    """Changes the size of one dimension, in the first tensor alone or in all tensors with the same size there."""

    dimension: int
    size: int
    alone: bool

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        first = _first(tensors)
        own = tensors[first].shape[self.dimension]
        return [
            self._cut(tensor) if number == first or (not self.alone and self._has(tensor, own)) else tensor
            for number, tensor in enumerate(tensors)
        ]

    def _has(self, tensor: torch.Tensor, size: int) -> bool:
        return tensor.ndim > max(self.dimension, 0) and tensor.shape[self.dimension] == size

    def _cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """Select some of the tensor's own values, so that indices stay valid; repeat from the first if it grows."""
        size = tensor.shape[self.dimension]
        return tensor.index_select(self.dimension, torch.arange(self.size, device=tensor.device) % size)


def try_other_shapes(
    request: EvalRequest, candidates: Sequence[Candidate], reference: Reference, cache: str
) -> tuple[ShapeTrial, ...]:
    """Try a candidate on other shapes, each in a new process."""
    limits = Limits(min(request.limits.build_s, EXTRA_SHAPE_S), min(request.limits.run_s, EXTRA_SHAPE_S))
    found = []
    for candidate, other in zip(candidates, accepted_sizes(reference), strict=False):
        shapes = tuple(tuple(tensor.shape) for tensor in other.first.inputs)
        candidate.limits = limits
        found.append(ShapeTrial(shapes, _try_size(replace(request, limits=limits), candidate, other, cache)))
    return tuple(found)


def _try_size(request: EvalRequest, candidate: Candidate, reference: Reference, cache: str) -> str:
    try:
        with Trial(request, candidate, reference, cache, PhaseClock(Phase.PROFILE)) as trial:
            trial.check()
    except Failure as failure:
        return failure.outcome.value.replace("_", " ")
    except (MachineryFault, TaskFault, torch.cuda.OutOfMemoryError):  # not the candidate's fault
        return NOT_TRIED
    return RIGHT


def accepted_sizes(reference: Reference) -> Iterator[Reference]:
    """Yield the reference on the other shapes that it takes."""
    seen: list[list[torch.Size]] = []
    for resized in _candidate_sizes(reference.first.inputs):
        shapes = [tensor.shape for tensor in resized(reference.first.inputs)]
        if shapes not in seen:
            seen.append(shapes)
            try:
                other = reference.with_input_sizes(resized)
            except (TaskFault, torch.cuda.OutOfMemoryError):
                continue
            yield other


def _candidate_sizes(inputs: list[torch.Tensor]) -> Iterator[Resize]:
    if all(tensor.ndim == 0 or tensor.numel() == 0 for tensor in inputs):
        return
    shape = inputs[_first(inputs)].shape
    batch, last = shape[0], shape[-1]
    for dimension, size in ((0, 2 * batch + 1), (0, 1), (0, batch // 2 | 1), (-1, last // 2 | 1), (-1, last + 1)):
        if size != shape[dimension]:
            yield Resize(dimension, size, alone=False)
            yield Resize(dimension, size, alone=True)


def _first(tensors: list[torch.Tensor]) -> int:
    """Return the first tensor with a size to change."""
    return next(number for number, tensor in enumerate(tensors) if tensor.ndim and tensor.numel())
