"""The gate of a call on the GPU: two words in host memory that both processes and the device map.

The candidate's stream waits until the gate word reaches the number of the call, and then does the call's work. Its last
operation writes the number to the done word. The referee opens the gate and sees the end with its own processor: no
message is part of a measurement.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Iterator

import torch

from stark_worker.device.arena import PAGE, fix_size
from stark_worker.device.driver import bind, driver
from stark_worker.protocol.errors import GpuUnhealthy

DONE, STEP = 2048, 256  # bytes from a gate word to its done word, and between steps: none may share a line of the cache
STEP_TIMEOUT_S = 30.0
_PORTABLE_AND_MAPPED, _AT_LEAST, _PLAIN_WRITE = 3, 0, 0  # the driver's constants


class Gate:
    """The referee's side. Its numbers rise, so that a gate stays open for the calls before."""

    def __init__(self, page: mmap.mmap) -> None:
        words = memoryview(page).cast("I")
        self._gate, self._done = words[:1], words[DONE // 4 : DONE // 4 + 1]
        self.opened = 0  # the last number

    def open(self) -> float:
        """Open the gate for the next call; return the time just before."""
        self.opened += 1
        gate, number = self._gate, self.opened
        now = time.perf_counter()
        gate[0] = number
        return now

    def await_done(self, until: float) -> float | None:
        """Spin until the last operation of the call was done; return the time, or None at ``until``."""
        done, number, clock = self._done, self.opened, time.perf_counter
        while done[0] != number:
            if clock() > until:
                return None
        return clock()


class WordStream:
    """Makes the current stream wait for words of a host page, and write them."""

    def __init__(self, page: mmap.mmap) -> None:
        self._page, self._address = page, _register(page)
        self._wait_value, self._write_value = bind("cuStreamWaitValue32_v2"), bind("cuStreamWriteValue32_v2")
        self._current_stream = torch.cuda.current_stream

    def close(self) -> None:
        """Take the page from the device: another page may get its address."""
        driver("cuMemHostUnregister", _address(self._page))

    def queue_wait(self, offset: int, number: int) -> None:
        """Queue a wait until the word at this offset is at least the number."""
        self._wait_value(self._stream(), ctypes.c_uint64(self._address + offset), ctypes.c_uint32(number), _AT_LEAST)

    def queue_write(self, offset: int, number: int) -> None:
        self._write_value(
            self._stream(), ctypes.c_uint64(self._address + offset), ctypes.c_uint32(number), _PLAIN_WRITE
        )

    def _stream(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._current_stream().cuda_stream)


class GateStream:
    """The candidate's side: queues the wait for the gate and the signal of the end."""

    def __init__(self, descriptor: int) -> None:
        self._stream = WordStream(mmap.mmap(descriptor, PAGE))
        os.close(descriptor)

    def await_gate(self, number: int) -> None:
        """Make the current stream wait until the referee opens this gate."""
        self._stream.queue_wait(0, number)

    def signal_done(self, number: int) -> None:
        """Make the current stream write the done word."""
        self._stream.queue_write(DONE, number)


class Steps:
    """Steps of the referee's own queued work, each begun by a store and ended by a load of its processor."""

    def __init__(self, held: contextlib.ExitStack) -> None:
        page = mmap.mmap(-1, PAGE)
        self._stream, self._words = WordStream(page), memoryview(page).cast("I")
        held.callback(self._stream.close)
        self._queued: dict[int, int] = {}  # the last number of each step

    @contextlib.contextmanager
    def queued(self, step: int, waits: bool = True) -> Iterator[None]:
        """Queue what is launched inside as a step. One that does not wait begins when the step before it has ended."""
        number = self._queued[step] = self._queued.get(step, 0) + 1
        if waits:
            self._stream.queue_wait(step * STEP, number)
        yield
        self._stream.queue_write(step * STEP + DONE, number)

    def take(self, step: int) -> float:
        """Begin a step and spin until it is done, as waking up would take longer; return the milliseconds."""
        words, number, done = self._words, self._queued[step], (step * STEP + DONE) // 4
        clock, began = time.perf_counter, time.perf_counter()
        words[step * STEP // 4] = number
        while words[done] != number:
            if clock() > began + STEP_TIMEOUT_S:
                raise GpuUnhealthy(f"GPU unhealthy: a copy did not end within {STEP_TIMEOUT_S:.0f} s.")
        return (clock() - began) * 1e3

    def take_all(self) -> None:
        for step in self._queued:
            self.take(step)


def open_gate(held: contextlib.ExitStack) -> tuple[int, Gate]:
    """Return the file of a new page with the two words, and the referee's side. ``held`` closes the file."""
    file = os.memfd_create("stark-gate", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    held.callback(os.close, file)
    fix_size(file, PAGE)
    return file, Gate(mmap.mmap(file, PAGE))


def _register(page: mmap.mmap) -> int:
    """Let the device access a page of host memory; return its address there."""
    host, there = _address(page), ctypes.c_uint64()
    driver("cuMemHostRegister_v2", host, ctypes.c_size_t(PAGE), ctypes.c_uint(_PORTABLE_AND_MAPPED))
    driver("cuMemHostGetDevicePointer_v2", ctypes.byref(there), host, ctypes.c_uint(0))
    return there.value


def _address(page: mmap.mmap) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
