"""An arena on the GPU: one allocation that two processes map, each at an address of its own.

It is physical memory by itself, not a block of torch's caching allocator: nothing but the arena is in it. It is handed
over as an open file, so that whoever has the file, and nobody else, can map it. In memory shared by CUDA's older way
(handles for cudaIpc) kernels were seen to take up to a quarter longer.
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
from stark_worker.device.arena import Arena, Written
from stark_worker.protocol.errors import MachineryFault

# Writing is held back so many times as long as it took to queue it the last time, and so long at most; a time that was
# unusually long is forgotten slowly.
QUEUEING, QUEUEING_MS, FADING = 2.0, 10.0, 0.9
CYCLES = 2_000_000  # of a device in a millisecond
# As the driver numbers them.
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
    """Device memory by address, in the form in which torch takes over somebody else's."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
            "strides": None,
            "version": 3,
        }


class DeviceMemory:
    """The referee's side of an arena on the GPU, and the file that opens it to another process.

    Without ``flushed`` calls find in the device's cache whatever is there, their inputs above all.
    """

    def __init__(self, size: int, flushed: bool = True) -> None:
        cuda.start()
        whole, handle, file = _rounded(size), ctypes.c_uint64(), ctypes.c_int()
        with contextlib.ExitStack() as held:
            _driver("cuMemCreate", ctypes.byref(handle), whole, ctypes.byref(_properties()), ctypes.c_uint64(0))
            held.callback(_driver, "cuMemRelease", handle)
            _driver("cuMemExportToShareableHandle", ctypes.byref(file), handle, _FILE, ctypes.c_uint64(0))
            held.callback(os.close, file.value)
            address = _map(handle, whole, held)
            self._flush = cuda.flush_memory() if flushed else None
            self._held = held.pop_all()
        self.arena, self.files = _arena(address, size), [file.value]
        self._gate = self.arena.first_word()
        self._gate.zero_()
        event: Any = torch.cuda.Event
        self._begun, self._written = event(enable_timing=True), event(enable_timing=True)
        self._held_back_ms = 0.0
        self.opened = 0  # the last gate that was opened; a call waits for it, or for the next one

    def close(self) -> None:
        """Give the memory back; nobody may hold a view of it any more."""
        torch.cuda.synchronize()
        self._held.close()

    def wait(self) -> None:
        """Until what was written can be read by the other process."""
        torch.cuda.synchronize()

    def begin(self, write: Callable[[], None]) -> Written:
        """Have the inputs written, flush the device's cache where that is wanted, and open the gate.

        Kernels of the candidate that do not wait at the gate can see inputs before it is opened. But a device computes
        for one process at a time: as long as they run, writing stands still. It is all queued before it begins, so that
        what it takes is up to the device alone.
        """
        sleep: Any = torch.cuda._sleep
        began = time.perf_counter()
        sleep(int(CYCLES * self._held_back_ms))
        self._begun.record()
        write()
        if self._flush is not None:
            self._flush.fill_(0)
        self._written.record()
        self.opened += 1
        self._gate.fill_(self.opened)
        queueing_ms = QUEUEING * (time.perf_counter() - began) * 1e3
        self._held_back_ms = min(max(queueing_ms, FADING * self._held_back_ms), QUEUEING_MS)
        self._written.synchronize()
        return Written(time.perf_counter(), self._begun.elapsed_time(self._written))

    def write(self, place: torch.Tensor, tensor: torch.Tensor) -> None:
        """By a kernel: what only copies can go on beside the kernels of another process."""
        tensor = tensor.resolve_conj().resolve_neg()
        if tensor.is_complex():
            tensor, place = torch.view_as_real(tensor), torch.view_as_real(place)
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        torch.bitwise_or(tensor.view(whole), 0, out=place.view(whole))


def open_arena(file: int, size: int) -> tuple[Arena, Callable[[int], None]]:
    """Another process's arena, and what makes the device wait for that one to open a gate."""
    cuda.start()
    handle = ctypes.c_uint64()
    _driver("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(file), _FILE)
    os.close(file)
    address = _map(handle, _rounded(size), contextlib.ExitStack())  # until this process ends

    current_stream, wait_value = torch.cuda.current_stream, _bound("cuStreamWaitValue32_v2")

    def wait_for(gate: int) -> None:
        stream = ctypes.c_void_p(current_stream().cuda_stream)
        wait_value(stream, address, ctypes.c_uint32(gate), ctypes.c_uint(_AT_LEAST))

    return _arena(address, size), wait_for


def _properties() -> _Properties:
    return _Properties(type=_PINNED, handles=_FILE, location=_location())


def _location() -> _Location:
    return _Location(_DEVICE, torch.cuda.current_device())


def _rounded(size: int) -> ctypes.c_size_t:
    """Whole pages, of the size at which they are fastest."""
    page = ctypes.c_size_t()
    _driver("cuMemGetAllocationGranularity", ctypes.byref(page), ctypes.byref(_properties()), _RECOMMENDED)
    return ctypes.c_size_t(-(-size // page.value) * page.value)


def _map(handle: ctypes.c_uint64, size: ctypes.c_size_t, held: contextlib.ExitStack) -> ctypes.c_uint64:
    """Give memory an address, and what takes it away again to those that hold it."""
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
    """Call the driver library in the context that torch uses."""
    _bound(function)(*arguments)


def _bound(function: str) -> Callable[..., None]:
    """A function of the driver library, which raises what goes wrong."""
    library = ctypes.CDLL("libcuda.so.1")
    there = library[function]

    def call(*arguments: Any) -> None:
        if code := there(*arguments):
            text = ctypes.c_char_p()
            library.cuGetErrorString(code, ctypes.byref(text))
            raise MachineryFault(f"{function} failed: {(text.value or b'unknown error').decode()} ({code})")

    return call
