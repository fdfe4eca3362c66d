"""The clocks in a candidate's process. What they say is believed only where the referee's own confirms it."""

from __future__ import annotations

import functools
import itertools
import select
import time
from collections.abc import Callable
from typing import Any

import torch

from stark_worker.processes.channel import Channel

SPIN_S = 0.1


class Clock:
    """Nothing to wait for and no clock but the referee's: the host computes while it is called."""

    def await_message(self, channel: Channel) -> None: ...

    def start(self, gate: int) -> None: ...

    def lap(self) -> None: ...

    def stop(self) -> None: ...

    def elapsed_ms(self) -> list[float] | None:
        return None

    def before_load(self) -> None: ...

    def peak_bytes(self, call: Callable[[], object]) -> int | None:
        """Memory taken at most during a call, beyond what was taken before loading; None where others can see it."""
        return None


class DeviceClock(Clock):
    """The device's own clock after each call. Made before a candidate is loaded, from what torch had then."""

    def __init__(self, most: int, gate: Callable[[int], None]) -> None:
        """``most`` is how many calls there can be in a row; ``gate`` makes the device wait for the referee."""
        self._gate = gate
        event: Any = torch.cuda.Event
        events = [event(enable_timing=True) for _ in range(most + 1)]
        self._marks: list[Callable[[], None]] = [each.record for each in events]
        self._spans: list[Callable[[], float]] = [
            functools.partial(begin.elapsed_time, end) for begin, end in itertools.pairwise(events)
        ]
        self._calls = 0
        self._synchronize = torch.cuda.synchronize

    def await_message(self, channel: Channel) -> None:
        """Wait a while without going to sleep: to wake up takes as long as a short kernel, and cores are not scarce."""
        until = time.perf_counter() + SPIN_S
        while time.perf_counter() < until and not select.select([channel], [], [], 0)[0]:
            pass

    def start(self, gate: int) -> None:
        """What is launched from here on waits until the referee has written the inputs: what is measured is the work of
        the device and not how fast it is launched.
        """
        self._gate(gate)
        self._calls = 0
        self._marks[0]()

    def lap(self) -> None:
        self._calls += 1
        self._marks[self._calls]()

    def stop(self) -> None:
        """All work is done when this returns, on whichever stream it was."""
        self._synchronize()

    def elapsed_ms(self) -> list[float] | None:
        return [span() for span in self._spans[: self._calls]]

    def before_load(self) -> None:
        self._held_before = torch.cuda.memory_allocated()

    def peak_bytes(self, call: Callable[[], object]) -> int | None:
        """As torch's allocator knows it: what native code takes from the driver itself is not in it."""
        torch.cuda.reset_peak_memory_stats()
        call()
        self._synchronize()
        return torch.cuda.max_memory_allocated() - self._held_before
