"""The arena: memory that the referee owns and the candidate's process transforms.

It holds weights, the inputs of the current call and its outputs. It never holds expected outputs or later inputs. There
are two places for inputs, so that calls find other values at other addresses. Each output has a slot; on a GPU the
candidate's allocator also takes its memory from the arena (``pool``). Values that are not tensors travel as JSON.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import math
import mmap
import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from stark_worker.processes import cgroups
from stark_worker.protocol.request import Build, Entry

PAGE = 4096
READ_PARTS = 64  # of one output
NUMBER_SHARE, MAX_POISON = 0.25, 100.0  # of poisoned outputs, and the magnitude of numbers
MIN_CACHE_BYTES, MAX_FLUSH_BYTES = 2**25, 2**28  # of the host; the first if its caches are not known

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]  # a target and a source each


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
    inputs: tuple[tuple[TensorSlot, ...], ...]  # by place
    outputs: tuple[TensorSlot, ...]
    reads_inputs: bool  # every candidate has to read most of them
    is_written: tuple[bool, ...]  # False for an output that existed before the call: it is always copied to its slot
    pool_offset: int
    size: int  # the pool is the rest of the arena


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """View the memory as integers: two for a complex number."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[real.element_size()])


def fix_size(descriptor: int, size: int) -> None:
    """Give a memory file its size and seal it: a file that shrank would kill a process that reads it."""
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


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

    @property
    def address(self) -> int:
        return self._memory.data_ptr()

    def words(self) -> torch.Tensor:
        """Return the whole arena as integers."""
        return self._memory[: self._memory.numel() // 4 * 4].view(torch.int32)

    def views(self, slots: Sequence[TensorSlot]) -> list[torch.Tensor]:
        return [self.view(slot) for slot in slots]


def host_arena(descriptor: int, size: int) -> Arena:
    """Return the arena in a shared file."""
    return Arena(torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8))


class HostMemory:
    """The referee's side of an arena in a file."""

    files: Sequence[int] = ()  # the candidate's process already has the file

    def __init__(self, descriptor: int, size: int) -> None:
        fix_size(descriptor, size)
        self.arena = host_arena(descriptor, size)

    def close(self) -> None:
        """Do nothing: the file goes with the last view of it."""

    def queue(self, inputs: Pairs, outputs: Sequence[torch.Tensor], copies: Pairs) -> None:
        """Empty the host's caches, copy the inputs, poison the outputs, and prepare ``read``.

        A candidate may have filled the caches after its last call. Inputs stay in them, as after the layer before.
        """
        _flush_buffer().sum()
        for view, tensor in inputs:
            view.copy_(tensor)
        for view in outputs:
            poison(view)
        self._parts = [part for mine, view in copies for part in _parts(mine, view)]
        random.SystemRandom().shuffle(self._parts)

    def await_written(self) -> float:
        """Return 0: what was written can be read at once."""
        return 0.0

    def flush(self) -> float:
        """Return 0: the host's caches were emptied before the writes."""
        return 0.0

    def probe(self) -> float:
        """Return 0: nothing of a stopped candidate runs."""
        return 0.0

    def await_return(self) -> None:
        """Do nothing: the host's processor never left."""

    def read(self) -> None:
        """Copy the outputs in random order, so that a candidate that still writes cannot stay ahead of the copy."""
        for target, source, size in self._parts:
            ctypes.memmove(target, source, size)

    def release(self) -> None:
        """Do nothing: no work is queued."""

    def describe_work(self) -> str:
        """Return nothing: the host's threads are all that can be left."""
        return ""


@functools.cache
def _flush_buffer() -> torch.Tensor:
    """Return memory that is larger than the largest cache. Reading it empties the caches."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    found = [int(size[:-1]) * 1024 for size in sizes if re.fullmatch(r"\d+K", size)]
    size = min(max(found, default=MIN_CACHE_BYTES) * 5 // 4, MAX_FLUSH_BYTES)
    return torch.ones(size // 8, dtype=torch.int64)  # memory that was never written would not be read either


def _parts(mine: torch.Tensor, view: torch.Tensor) -> list[tuple[int, int, int]]:
    """Cut the memory of two dense tensors of one layout into parts: addresses of both, and a size."""
    size = nbytes(view)
    step = max(-(-size // READ_PARTS), PAGE)
    begins = range(0, size, step)
    return [(mine.data_ptr() + begin, view.data_ptr() + begin, min(step, size - begin)) for begin in begins]


def copy_into(view: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a tensor. On the host use one thread: the candidate's threads may still spin on the other cores."""
    if view.stride() == tensor.stride() and view.is_cpu and tensor.is_cpu:
        ctypes.memmove(view.data_ptr(), tensor.data_ptr(), nbytes(view))
    else:
        view.copy_(tensor)


def poison(view: torch.Tensor) -> None:
    """Overwrite a whole output with a value that no candidate can know: no part of an earlier result may pass.

    Mostly it is NaN, which shows in a log. Some results are NaN by right, so sometimes it is a number.
    """
    chance = random.SystemRandom()
    if view.is_complex() or view.is_floating_point():
        number = chance.uniform(-MAX_POISON, MAX_POISON) if chance.random() < NUMBER_SHARE else math.nan
        (torch.view_as_real(view) if view.is_complex() else view).fill_(number)
    elif view.dtype is torch.bool:
        view.fill_(chance.random() < 0.5)
    else:
        view.fill_(chance.randint(torch.iinfo(view.dtype).min, torch.iinfo(view.dtype).max))


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
