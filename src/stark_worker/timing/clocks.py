"""The clocks in a candidate's process. Their times count only if the referee's own clock confirms them."""

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
    """The host's clock: measures nothing, because the host computes during the call. The referee times it."""

    def await_message(self, channel: Channel) -> None: ...

    def start(self, gate: int) -> None: ...

    def lap(self) -> None: ...

    def stop(self) -> None: ...

    def elapsed_ms(self) -> list[float] | None:
        return None

    def before_load(self) -> None: ...

    def peak_bytes(self, call: Callable[[], object]) -> int | None:
        """Return the peak memory of a call beyond that before loading; None if it can be measured from outside."""
        return None


class DeviceClock(Clock):
    """The device's events after each call. Made before a candidate is loaded, so it cannot patch torch first."""

    def __init__(self, most: int, gate: Callable[[int], None]) -> None:
        """``most`` is the greatest burst length; ``gate`` makes the device wait for the referee."""
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
        """Spin for a while before blocking: waking up takes as long as a short kernel."""
        until = time.perf_counter() + SPIN_S
        while time.perf_counter() < until and not select.select([channel], [], [], 0)[0]:
            pass

    def start(self, gate: int) -> None:
        """Make launched work wait until the referee has written the inputs.

        Events then measure the device's work and not the launching.
        """
        self._gate(gate)
        self._calls = 0
        self._marks[0]()

    def lap(self) -> None:
        self._calls += 1
        self._marks[self._calls]()

    def stop(self) -> None:
        """Wait for all work on all streams."""
        self._synchronize()

    def elapsed_ms(self) -> list[float] | None:
        return [span() for span in self._spans[: self._calls]]

    def before_load(self) -> None:
        self._held_before = torch.cuda.memory_allocated()

    def peak_bytes(self, call: Callable[[], object]) -> int | None:
        """Return the peak of torch's allocator; memory that native code takes from the driver is not in it."""
        torch.cuda.reset_peak_memory_stats()
        call()
        self._synchronize()
        return torch.cuda.max_memory_allocated() - self._held_before
