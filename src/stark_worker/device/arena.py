"""The arena: memory that the referee owns and the candidate's process transforms.

It holds weights, the inputs of the current calls and their outputs. It never holds expected outputs or later inputs.
Inputs and outputs have several slots each, so that consecutive calls find other values at other addresses. Values that
are not tensors travel as JSON.
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


@dataclass(frozen=True)
class TensorSlot:
    """The position of a tensor in the arena, with its dtype, shape and strides."""

    offset: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def fits(self, tensor: torch.Tensor) -> bool:
        return self.dtype == dtype_name(tensor) and self.shape == tuple(tensor.shape)


@dataclass(frozen=True)
class Job:
    """The candidate's process receives this before it loads anything. ``construct`` and ``arguments`` are packed."""

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
    """Assigns slots in an arena that does not exist yet."""

    def __init__(self) -> None:
        self.size = PAGE

    def place(self, tensor: torch.Tensor) -> TensorSlot:
        """Return a slot for a tensor of this dtype and shape. The slot has the tensor's memory order, but no gaps."""
        slot = TensorSlot(self.size, dtype_name(tensor), tuple(tensor.shape), _dense_strides(tensor))
        self.size += -(-nbytes(tensor) // PAGE) * PAGE
        return slot

    def place_all(self, tensors: Sequence[torch.Tensor]) -> tuple[TensorSlot, ...]:
        return tuple(self.place(tensor) for tensor in tensors)


def _dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of a dense tensor in the same memory order.

    Torch computes them too, but for a meta tensor only after seconds of imports.
    """
    if not tensor.is_meta:
        return tuple(torch.empty_like(tensor).stride())
    strides, step = [0] * tensor.ndim, 1
    for dimension in sorted(range(tensor.ndim), key=lambda each: (tensor.stride(each), tensor.shape[each])):
        strides[dimension] = step
        step *= tensor.shape[dimension]
    return tuple(strides)


class Arena:
    """Memory that two processes share, as tensors, on the host or on a device."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory

    def view(self, slot: TensorSlot) -> torch.Tensor:
        """Return the tensor in a slot."""
        dtype: torch.dtype = getattr(torch, slot.dtype)
        size = torch.Size(slot.shape).numel() * dtype.itemsize
        if size == 0:
            return torch.empty(slot.shape, dtype=dtype, device=self._memory.device)
        return self._memory[slot.offset : slot.offset + size].view(dtype).as_strided(slot.shape, slot.stride)

    def first_word(self) -> torch.Tensor:
        """Return the integer that lies before all slots."""
        return self._memory[:4].view(torch.int32)

    def views(self, slots: Sequence[TensorSlot]) -> list[torch.Tensor]:
        return [self.view(slot) for slot in slots]


class WriteEnd(NamedTuple):
    """The time when the inputs were written, and how long the device took to write them."""

    at: float
    took_ms: float = 0.0


def host_arena(descriptor: int, size: int) -> Arena:
    """Return the arena in a shared file."""
    return Arena(torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8))


class HostMemory:
    """The referee's side of an arena in a file. Its size is sealed: a file that shrank would kill the referee."""

    files: Sequence[int] = ()  # the candidate's process already has the file
    opened = 0  # there is no gate: the candidate is stopped until a call

    def __init__(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.arena = host_arena(descriptor, size)

    def close(self) -> None:
        """Do nothing: the file goes with the last view of it."""

    def wait(self) -> None:
        """Do nothing: the other process sees host memory at once."""

    def begin(self, write: Callable[[], None]) -> WriteEnd:
        """Write the inputs by this function."""
        write()
        return WriteEnd(time.perf_counter())

    def write(self, view: torch.Tensor, tensor: torch.Tensor) -> None:
        view.copy_(tensor)


def copy_into(view: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a tensor. On the host use one thread: the candidate's threads may still spin on the other cores."""
    if view.stride() == tensor.stride() and view.is_cpu and tensor.is_cpu:
        ctypes.memmove(view.data_ptr(), tensor.data_ptr(), nbytes(view))
    else:
        view.copy_(tensor)


def poison(view: torch.Tensor) -> None:
    """Overwrite a whole output, so that no part of an earlier result can pass for a new one."""
    if view.is_floating_point() or view.is_complex():
        view.fill_(float("nan"))
    elif view.dtype is torch.bool:
        view.logical_not_()
    else:
        view.fill_(torch.iinfo(view.dtype).min)


def free_bytes(device: torch.device) -> int:
    """Return how much memory of the device is free."""
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
