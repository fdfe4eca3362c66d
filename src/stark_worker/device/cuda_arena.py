"""An arena on the GPU: one allocation that two processes map, each at its own address.

It is a separate physical allocation, not a block of torch's caching allocator, so it holds nothing but the arena. It is
passed as an open file, so that only a process with the file can map it. In memory shared by CUDA's older way (handles
for cudaIpc) kernels took up to a quarter longer.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from stark_worker.device import cuda
from stark_worker.device.arena import Arena, WriteEnd
from stark_worker.protocol.errors import MachineryFault

# The device sleeps before it writes, so that all is queued first: for a multiple of the last queueing time, up to a
# maximum. An unusually long time is forgotten slowly.
DELAY_FACTOR, MAX_DELAY_MS, DELAY_DECAY = 2.0, 10.0, 0.9
CYCLES_PER_MS = 2_000_000
# The driver's constants.
_PINNED, _FILE, _DEVICE, _READ_AND_WRITE, _RECOMMENDED, _AT_LEAST = 1, 1, 1, 3, 1, 0


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
    """The referee's side of an arena on the GPU, and the file by which another process maps it.

    Without ``flushed`` calls may find their inputs in the device's cache.
    """

    def __init__(self, size: int, flushed: bool = True) -> None:
        cuda.init_context()
        rounded, handle, file = _round_up(size), ctypes.c_uint64(), ctypes.c_int()
        with contextlib.ExitStack() as held:
            _driver("cuMemCreate", ctypes.byref(handle), rounded, ctypes.byref(_properties()), ctypes.c_uint64(0))
            held.callback(_driver, "cuMemRelease", handle)
            _driver("cuMemExportToShareableHandle", ctypes.byref(file), handle, _FILE, ctypes.c_uint64(0))
            held.callback(os.close, file.value)
            address = _map(handle, rounded, held)
            self._flush = cuda.allocate_flush_buffer() if flushed else None
            self._held = held.pop_all()
        self.arena, self.files = _arena(address, size), [file.value]
        self._gate = self.arena.first_word()
        self._gate.zero_()
        event: Any = torch.cuda.Event
        self._begun, self._written = event(enable_timing=True), event(enable_timing=True)
        self._delay_ms = 0.0
        self.opened = 0  # the last gate that was opened; a call waits for it or for the next one

    def close(self) -> None:
        """Free the memory. No view of it may exist."""
        torch.cuda.synchronize()
        self._held.close()

    def wait(self) -> None:
        """Wait until the other process can read what was written."""
        torch.cuda.synchronize()

    def begin(self, write: Callable[[], None]) -> WriteEnd:
        """Write the inputs by this function, flush the device's cache if asked to, and open the gate.

        The candidate's kernels that do not wait at the gate can see inputs before it opens. But a device computes for
        one process at a time: while they run, nothing is written. All writes are queued before the first one begins, so
        that their duration depends on the device alone.
        """
        sleep: Any = torch.cuda._sleep
        began = time.perf_counter()
        sleep(int(CYCLES_PER_MS * self._delay_ms))
        self._begun.record()
        write()
        if self._flush is not None:
            self._flush.fill_(0)
        self._written.record()
        self.opened += 1
        self._gate.fill_(self.opened)
        delay_ms = DELAY_FACTOR * (time.perf_counter() - began) * 1e3
        self._delay_ms = min(max(delay_ms, DELAY_DECAY * self._delay_ms), MAX_DELAY_MS)
        self._written.synchronize()
        return WriteEnd(time.perf_counter(), self._begun.elapsed_time(self._written))

    def write(self, view: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copy a tensor by a kernel. A plain copy could run at the same time as the kernels of another process."""
        tensor = tensor.resolve_conj().resolve_neg()
        if tensor.is_complex():
            tensor, view = torch.view_as_real(tensor), torch.view_as_real(view)
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        torch.bitwise_or(tensor.view(integer), 0, out=view.view(integer))


def open_arena(file: int, size: int) -> tuple[Arena, Callable[[int], None]]:
    """Return another process's arena, and a function that makes the device wait until that process opens a gate."""
    cuda.init_context()
    handle = ctypes.c_uint64()
    _driver("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(file), _FILE)
    os.close(file)
    address = _map(handle, _round_up(size), contextlib.ExitStack())  # mapped until this process ends

    current_stream, wait_value = torch.cuda.current_stream, _bind("cuStreamWaitValue32_v2")

    def wait_for(gate: int) -> None:
        stream = ctypes.c_void_p(current_stream().cuda_stream)
        wait_value(stream, address, ctypes.c_uint32(gate), ctypes.c_uint(_AT_LEAST))

    return _arena(address, size), wait_for


def _properties() -> _Properties:
    return _Properties(type=_PINNED, handles=_FILE, location=_location())


def _location() -> _Location:
    return _Location(_DEVICE, torch.cuda.current_device())


def _round_up(size: int) -> ctypes.c_size_t:
    """Round up to whole pages of the recommended size."""
    page = ctypes.c_size_t()
    _driver("cuMemGetAllocationGranularity", ctypes.byref(page), ctypes.byref(_properties()), _RECOMMENDED)
    return ctypes.c_size_t(-(-size // page.value) * page.value)


def _map(handle: ctypes.c_uint64, size: ctypes.c_size_t, held: contextlib.ExitStack) -> ctypes.c_uint64:
    """Map memory and return its address. ``held`` gets the callbacks that unmap it."""
    address, none = ctypes.c_uint64(), ctypes.c_uint64(0)
    _driver("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), none, none)
    held.callback(_driver, "cuMemAddressFree", address, size)
    _driver("cuMemMap", address, size, ctypes.c_size_t(0), handle, none)
    held.callback(_driver, "cuMemUnmap", address, size)
    access = _Access(_location(), _READ_AND_WRITE)
    _driver("cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))
    return address


def _arena(address: ctypes.c_uint64, size: int) -> Arena:
    return Arena(torch.as_tensor(_Block(address.value, size), device="cuda"))


def _driver(function: str, *arguments: Any) -> None:
    """Call the driver library in torch's context."""
    _bind(function)(*arguments)


def _bind(function: str) -> Callable[..., None]:
    """Return a function of the driver library that raises MachineryFault on an error."""
    library = ctypes.CDLL("libcuda.so.1")
    foreign = library[function]

    def call(*arguments: Any) -> None:
        if code := foreign(*arguments):
            text = ctypes.c_char_p()
            library.cuGetErrorString(code, ctypes.byref(text))
            raise MachineryFault(f"{function} failed: {(text.value or b'unknown error').decode()} ({code})")

    return call
