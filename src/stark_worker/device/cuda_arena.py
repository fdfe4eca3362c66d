"""An arena on the GPU: one allocation that two processes map, each at its own address.

It is a separate physical allocation, not a block of torch's caching allocator, so it holds nothing but the arena. It is
passed as an open file, so that only a process with the file can map it. In memory shared by CUDA's older way (handles
for cudaIpc) kernels took up to a quarter longer.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import time
from collections.abc import Sequence
from typing import Any

import torch

from stark_worker.device import cuda
from stark_worker.device.arena import Arena, Pairs, bits, nbytes, poison
from stark_worker.device.driver import driver
from stark_worker.device.gate import Steps, open_gate

# The device sleeps before it writes, so that all is queued first: for a multiple of the last queueing time, up to a
# maximum. An unusually long time is forgotten slowly.
DELAY_FACTOR, MAX_DELAY_MS, DELAY_DECAY = 2.0, 10.0, 0.9
CYCLES_PER_MS = 2_000_000
WORDS_PER_DECOY, MAX_DECOYS = 64, 256  # of one input
MAX_CHANGE_MS = 1.0  # a kernel that does not end keeps the device for a whole time slice of 2 ms
FLUSH, PROBE, RETURN, READ = 1, 2, 3, 4  # steps of a call
# The driver's constants.
_PINNED, _FILE, _DEVICE, _READ_AND_WRITE, _RECOMMENDED = 1, 1, 1, 3, 1


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Flags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("remote", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", _Flags),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _Block:
    """Device memory by address, in the form in which torch adopts foreign memory."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
            "strides": None,
            "version": 3,
        }


class DeviceMemory:
    """The referee's side of an arena on the GPU, and the files by which another process maps it and its gate.

    Without ``flushed`` calls may find their inputs in the device's cache.
    """

    def __init__(self, size: int, flushed: bool = True) -> None:
        cuda.init_context()
        rounded, handle, file = _round_up(size), ctypes.c_uint64(), ctypes.c_int()
        with contextlib.ExitStack() as held:
            driver("cuMemCreate", ctypes.byref(handle), rounded, ctypes.byref(_properties()), ctypes.c_uint64(0))
            held.callback(driver, "cuMemRelease", handle)
            driver("cuMemExportToShareableHandle", ctypes.byref(file), handle, _FILE, ctypes.c_uint64(0))
            held.callback(os.close, file.value)
            address = _map(handle, rounded, held)
            words, self.gate = open_gate(held)
            self._steps = Steps(held)
            self._flush = cuda.allocate_flush_buffer() if flushed else None
            self._held = held.pop_all()
        self.arena, self.files = _arena(address, size), [file.value, words]
        self._words, self._own_word = self.arena.words(), torch.zeros(1, device="cuda")
        event: Any = torch.cuda.Event
        self._begun, self._written = event(enable_timing=True), event(enable_timing=True)
        self._delay_ms = 0.0

    def close(self) -> None:
        """Free the memory. No view of it may exist."""
        torch.cuda.synchronize()
        del self._words
        self._held.close()

    def queue(self, inputs: Pairs, outputs: Sequence[torch.Tensor], copies: Pairs) -> None:
        """Queue all of this process's work on the device for one call: writing, the probe and the copy of the outputs.

        All but the writes wait for their steps. So no launch is part of a measurement, only stores and loads of words.
        Some words of the inputs stay wrong until the probe. The cache is flushed as late as possible: a copy engine
        could fill it again.
        """
        sleep: Any = torch.cuda._sleep
        began = time.perf_counter()
        driver("cuCtxResetPersistingL2Cache")
        decoys = self._choose_decoys([view for view, _ in inputs])
        pairs = [(bits(mine), bits(view)) for mine, view in copies]
        sleep(int(CYCLES_PER_MS * self._delay_ms))  # so that all writes are queued before the first one begins
        self._begun.record()
        for view, tensor in inputs:
            copy_by_kernel(view, tensor)
        right = self._words[decoys]
        self._words.scatter_(0, decoys, right.bitwise_xor(random.SystemRandom().randrange(1, 2**31)))
        for view in outputs:
            poison(view)
        self._written.record()
        delay_ms = DELAY_FACTOR * (time.perf_counter() - began) * 1e3
        self._delay_ms = min(max(delay_ms, DELAY_DECAY * self._delay_ms), MAX_DELAY_MS)
        with self._steps.queued(FLUSH):
            if self._flush is not None:
                self._flush.fill_(0)
        with self._steps.queued(PROBE):
            self._own_word.zero_()  # a task may have no inputs
            self._words.scatter_(0, decoys, right)
        with self._steps.queued(RETURN):
            self._own_word.zero_()
        with self._steps.queued(READ, waits=False):  # the device stays with this process
            for mine, view in pairs:
                torch.bitwise_or(view, 0, out=mine)

    def await_written(self) -> float:
        """Wait for the writes; return the milliseconds they took. While anything of a candidate runs, none is done."""
        self._written.synchronize()
        return float(self._begun.elapsed_time(self._written))

    def flush(self) -> float:
        """Flush the cache; return the milliseconds, more if anything of a candidate ran since the writes."""
        return self._steps.take(FLUSH)

    def probe(self) -> float:
        """Correct the decoys by one small kernel; return the milliseconds, more if anything of a candidate ran."""
        return self._steps.take(PROBE)

    def await_return(self) -> None:
        """Wait until the device has changed to this process, after all work of the candidate's."""
        self._steps.take(RETURN)

    def read(self) -> None:
        """Copy the outputs, as soon as the device has changed to this process."""
        self._steps.take_all()

    def describe_work(self) -> str:
        """Return a sentence on work of the candidate's that is left on the device: it delays a change of process."""
        return describe_delay(self._steps.take(RETURN))

    def release(self) -> None:
        """Let all queued work run, after a call that failed."""
        self.read()

    def _choose_decoys(self, views: Sequence[torch.Tensor]) -> torch.Tensor:
        """Choose random words of each input. No word is always among them: a stream could wait for its correction."""
        chosen = [torch.empty(0, dtype=torch.int64, device="cuda")]
        for view in views:
            words = nbytes(view) // 4
            if words > 1 or (words and random.SystemRandom().random() < 0.5):
                count = min(max(words // WORDS_PER_DECOY, 1), MAX_DECOYS)
                first = (view.data_ptr() - self.arena.address) // 4
                chosen.append(torch.randint(words, (count,), device="cuda") + first)
        return torch.cat(chosen)


def describe_delay(change_ms: float) -> str:
    """Return what it means that the device needed so long to change to this process."""
    if change_ms > MAX_CHANGE_MS:
        return (
            "A kernel of it runs on the GPU without end. A barrier over the grid needs all blocks resident at once; one"
            " within a block has to be reached by all its threads."
        )
    return "Nothing of it runs on the GPU: its process on the host waits."


def copy_by_kernel(view: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a tensor by a kernel. A plain copy could run at the same time as the kernels of another process."""
    torch.bitwise_or(bits(tensor.resolve_conj().resolve_neg()), 0, out=bits(view))


def open_arena(file: int, size: int) -> Arena:
    """Return another process's arena."""
    cuda.init_context()
    handle = ctypes.c_uint64()
    driver("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(file), _FILE)
    os.close(file)
    return _arena(_map(handle, _round_up(size), contextlib.ExitStack()), size)  # mapped until this process ends


def _properties() -> _Properties:
    return _Properties(type=_PINNED, handles=_FILE, location=_location())


def _location() -> _Location:
    return _Location(_DEVICE, torch.cuda.current_device())


def _round_up(size: int) -> ctypes.c_size_t:
    """Round up to whole pages of the recommended size."""
    page = ctypes.c_size_t()
    driver("cuMemGetAllocationGranularity", ctypes.byref(page), ctypes.byref(_properties()), _RECOMMENDED)
    return ctypes.c_size_t(-(-size // page.value) * page.value)


def _map(handle: ctypes.c_uint64, size: ctypes.c_size_t, held: contextlib.ExitStack) -> ctypes.c_uint64:
    """Map memory and return its address. ``held`` gets the callbacks that unmap it."""
    address, none = ctypes.c_uint64(), ctypes.c_uint64(0)
    driver("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), none, none)
    held.callback(driver, "cuMemAddressFree", address, size)
    driver("cuMemMap", address, size, ctypes.c_size_t(0), handle, none)
    held.callback(driver, "cuMemUnmap", address, size)
    access = _Access(_location(), _READ_AND_WRITE)
    driver("cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))
    return address


def _arena(address: ctypes.c_uint64, size: int) -> Arena:
    return Arena(torch.as_tensor(_Block(address.value, size), device="cuda"))
