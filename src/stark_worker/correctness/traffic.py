"""Counts the bytes that a call has to move between the device and its memory.

No kernel is faster than its certain bytes at the bandwidth of the device. Certain are the outputs that the reference
writes and that depend on the inputs. An input is certain as far as changed elements were seen to change an output: if
all of some elements do, chosen at random, then nearly all elements have to be read. Weights are not certain: a
candidate may have packed them.
"""

from __future__ import annotations

import copy
import functools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from stark_worker.correctness.compare import index_of, same_bits
from stark_worker.correctness.reference import Case, Reference
from stark_worker.device.arena import free_bytes, nbytes
from stark_worker.protocol.errors import TaskFault

MIN_PROBES, MAX_PROBES, PROBING_S = 4, 32, 0.2  # elements of each input; the time for more than the fewest
CHANCE = 0.01  # of a share that is too large
MIN_INPUT_SHARE = 0.01  # of all inputs; smaller ones are not probed
COPIES = 3  # of inputs and outputs, that probing needs memory for
MOST = 0.5  # of the bytes of inputs
SAMPLE_SIZE = 64  # values of an output that show if it depends on the inputs

Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]


@dataclass(frozen=True)
class Traffic:
    """Bytes of one call, each counted once: certainly written, certainly read, and all others.

    The others are weights, inputs that were not shown to matter, and outputs that need not be written.
    """

    written: int
    read: int
    others: int


@functools.lru_cache(maxsize=1)  # a referee has one reference
def certain_bytes(reference: Reference) -> Traffic:
    """Count the bytes of a call, once for each task. It takes a few calls of the reference."""
    case = reference.first if reference.first.expected else reference.draw(exact=False)
    assert case is not None  # only changed inputs can lead to none
    model = copy.deepcopy(reference.model)  # a call may change its state

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return reference.run(model, inputs, case.seed)

    written = _written_bytes(reference, case, run)
    has_room = COPIES * reference.call_bytes <= free_bytes(reference.device)
    read = _read_bytes(case.inputs, run) if has_room else 0
    everything = reference.call_bytes + sum(map(nbytes, reference.model.state_dict().values()))
    return Traffic(written, read, everything - written - read)


def reads_inputs(reference: Reference) -> bool:
    """True if a call certainly has to read most of its inputs."""
    return certain_bytes(reference).read > MOST * sum(map(nbytes, reference.first.inputs))


def _written_bytes(reference: Reference, case: Case, run: Run) -> int:
    """Return the bytes of the largest output that is new and depends on the inputs. Outputs may overlap."""
    mine = [_sample(output) for output in run(case.inputs)]
    other = reference.draw(exact=False)
    assert other is not None
    pairs = zip(mine, run(other.inputs), reference.outputs, reference.writes_output, strict=True)
    return max(
        (nbytes(kind) for one, two, kind, is_new in pairs if is_new and not same_bits(one, _sample(two))), default=0
    )


def _sample(output: torch.Tensor) -> torch.Tensor:
    return output.flatten()[:: max(output.numel() // SAMPLE_SIZE, 1)].clone()


def _read_bytes(inputs: list[torch.Tensor], run: Run) -> int:
    """Return the bytes of the inputs that matter, with a chance of ``CHANCE`` that one of them is counted too high."""
    usual = run(inputs)
    if not _is_same(usual, run(inputs)):  # any change of an output would look like an effect
        return 0
    least = MIN_INPUT_SHARE * sum(map(nbytes, inputs))
    probed = {number: 0 for number, tensor in enumerate(inputs) if tensor.numel() > 1 and nbytes(tensor) >= least}
    deadline = time.monotonic() + PROBING_S
    for count in range(MAX_PROBES):
        if count >= MIN_PROBES and time.monotonic() > deadline:
            break
        for number in list(probed):
            if any(_has_effect(usual, changed, run) for changed in _changed_inputs(inputs, number)):
                probed[number] += 1
            else:
                del probed[number]
    return sum(int(nbytes(inputs[number]) * _certain_share(count)) for number, count in probed.items())


def _has_effect(usual: list[torch.Tensor], changed: list[torch.Tensor], run: Run) -> bool:
    try:
        return not _is_same(usual, run(changed))
    except TaskFault:  # the reference refuses these inputs, which shows nothing
        return False


def _certain_share(count: int) -> float:
    """Return the least share of elements that matter, if ``count`` of them did, chosen at random."""
    return float(CHANCE ** (1 / count))


def _changed_inputs(inputs: list[torch.Tensor], number: int) -> Iterator[list[torch.Tensor]]:
    """Yield the inputs with one element set to the largest and then to the smallest value of its tensor.

    Values of the tensor's own range are valid wherever its own are, also as indices.
    """
    tensor = inputs[number]
    place = index_of(random.SystemRandom().randrange(tensor.numel()), tensor.shape)
    for value in _extremes(tensor):
        if not torch.equal(tensor[tuple(place)], value):
            changed = tensor.clone()
            changed[tuple(place)] = value
            yield [*inputs[:number], changed, *inputs[number + 1 :]]


def _extremes(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the largest and the smallest value; none for complex numbers, which have no order."""
    if tensor.is_complex():
        return ()
    low, high = tensor.view(torch.uint8).aminmax() if tensor.dtype is torch.bool else tensor.aminmax()
    return high.to(tensor.dtype), low.to(tensor.dtype)


def _is_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(same_bits, one, other))
