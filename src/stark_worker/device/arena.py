"""The arena: memory that the referee owns and the candidate's process transforms.

It holds weights, the inputs of the current calls and their outputs, and nothing else: expected outputs and later inputs
never lie in it. Inputs and outputs have several places each, so that calls in a row find other values at other
addresses. Values that are not tensors travel beside it as JSON.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from stark_worker.processes import cgroups
from stark_worker.protocol.request import Build, Entry

PAGE = 4096


POISON_STEP = 8  # one row in so many: what was not handed over is noticed by any of them


@dataclass(frozen=True)
class TensorSlot:
    """Where in the arena a tensor lies, and what kind it is."""

    offset: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def fits(self, tensor: torch.Tensor) -> bool:
        return self.dtype == dtype_name(tensor) and self.shape == tuple(tensor.shape)


@dataclass(frozen=True)
class Job:
    """What the candidate's process is told before it loads anything; ``construct`` and ``arguments`` are packed."""

    entry: Entry
    device: str
    dtype: str
    tf32: bool
    threads: int
    construct_seed: int
    build: Build
    cache: str
    nontrivial: bool
    construct: str
    construct_tensors: tuple[TensorSlot, ...]
    weights: dict[str, TensorSlot]
    arguments: str
    inputs: tuple[tuple[TensorSlot, ...], ...]
    outputs: tuple[tuple[TensorSlot, ...], ...]
    size: int


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class ArenaAllocator:
    """Hands out places in an arena that is yet to be made."""

    def __init__(self) -> None:
        self.size = PAGE

    def place(self, tensor: torch.Tensor) -> TensorSlot:
        """A place for a tensor of this kind; its memory order is kept where it has no gaps."""
        slot = TensorSlot(self.size, dtype_name(tensor), tuple(tensor.shape), _without_gaps(tensor))
        self.size += -(-nbytes(tensor) // PAGE) * PAGE
        return slot

    def place_all(self, tensors: Sequence[torch.Tensor]) -> tuple[TensorSlot, ...]:
        return tuple(self.place(tensor) for tensor in tensors)


def _without_gaps(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of a tensor in the same memory order. Torch knows them, but of one without data only after seconds of
    importing.
    """
    if not tensor.is_meta:
        return tuple(torch.empty_like(tensor).stride())
    strides, step = [0] * tensor.ndim, 1
    for dimension in sorted(range(tensor.ndim), key=lambda each: (tensor.stride(each), tensor.shape[each])):
        strides[dimension] = step
        step *= tensor.shape[dimension]
    return tuple(strides)


class Arena:
    """Memory that two processes see, as tensors; where it lies, on the host or on a device, is all the same here."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory

    def view(self, slot: TensorSlot) -> torch.Tensor:
        """The tensor at a place."""
        dtype: torch.dtype = getattr(torch, slot.dtype)
        size = torch.Size(slot.shape).numel() * dtype.itemsize
        if size == 0:
            return torch.empty(slot.shape, dtype=dtype, device=self._memory.device)
        return self._memory[slot.offset : slot.offset + size].view(dtype).as_strided(slot.shape, slot.stride)

    def first_word(self) -> torch.Tensor:
        """A number before all places."""
        return self._memory[:4].view(torch.int32)

    def views(self, slots: Sequence[TensorSlot]) -> list[torch.Tensor]:
        return [self.view(slot) for slot in slots]


class Written(NamedTuple):
    """When the inputs were there, and how long the device took to write them."""

    at: float
    took_ms: float = 0.0


def host_arena(descriptor: int, size: int) -> Arena:
    """The arena in a shared file."""
    return Arena(torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8))


class HostMemory:
    """The referee's side of an arena in a file. Its size is for good: one that shrank would kill the referee."""

    files: Sequence[int] = ()  # it was started with the file
    opened = 0  # there is no gate: whoever is called is stopped until then

    def __init__(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.arena = host_arena(descriptor, size)

    def close(self) -> None:
        """The file goes with the last view of it."""

    def wait(self) -> None:
        """Until what was written can be read by the other process: at once."""

    def begin(self, write: Callable[[], None]) -> Written:
        """Have the inputs written."""
        write()
        return Written(time.perf_counter())

    def write(self, place: torch.Tensor, tensor: torch.Tensor) -> None:
        place.copy_(tensor)


def copy_into(place: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy, on the host by this thread alone: threads of the candidate's may still be spinning on the other cores."""
    if place.stride() == tensor.stride() and place.is_cpu and tensor.is_cpu:
        ctypes.memmove(place.data_ptr(), tensor.data_ptr(), nbytes(place))
    else:
        place.copy_(tensor)


def poison(view: torch.Tensor) -> None:
    """Overwrite an output, so that nothing of an earlier call can pass for a result; some of its rows will do."""
    view = view[::POISON_STEP] if view.ndim else view
    if view.is_floating_point() or view.is_complex():
        view.fill_(float("nan"))
    elif view.dtype is torch.bool:
        view.logical_not_()
    else:
        view.fill_(torch.iinfo(view.dtype).min)


def free_bytes(device: torch.device) -> int:
    """How much memory of the device nobody uses."""
    if device.type == "cuda":
        return (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    left = int(found[1]) * 1024 if found else 0
    allowed = cgroups.memory_left_bytes()
    return left if allowed is None else min(left, allowed)
