"""A process's memory and the machine's CPU load, as the system counts them. No torch."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from stark_worker.processes.process_tree import TICKS

MIN_BUSY_CORES = 0.25  # every idle system causes less load than this

_RESET_PEAK = "5"
_BUSY_COLUMNS = (1, 2, 3, 6, 7, 8)  # of a line of /proc/stat: user, nice, system, both interrupts, stolen by the host


class Footprint:
    """Measures the peak of a process's private memory from here on: neither files nor the arena.

    The system counts touched pages, so the peak is known to a few megabytes.
    """

    def __init__(self, process: int) -> None:
        self._entry = Path("/proc", str(process))
        try:
            (self._entry / "clear_refs").write_text(_RESET_PEAK)
            self._before: int | None = self._sizes()["RssAnon"]
        except (OSError, KeyError):
            self._before = None

    def extra_bytes(self) -> int | None:
        """Return the peak above the size at the beginning; None if the system does not report it."""
        if self._before is None:
            return None
        try:
            now = self._sizes()
            return now["VmHWM"] - now["RssFile"] - now["RssShmem"] - self._before
        except (OSError, KeyError):  # it has ended
            return None

    def _sizes(self) -> dict[str, int]:
        text = (self._entry / "status").read_text(errors="replace")  # the name can be any bytes
        found = re.findall(r"^(\w+):\s*(\d+) kB$", text, re.MULTILINE)
        return {name: int(size) * 1024 for name, size in found}


class CpuLoad:
    """Measures the CPU load of other processes from here on. ``own_cpu_s`` returns the CPU seconds to leave out."""

    def __init__(self, own_cpu_s: Callable[[], float]) -> None:
        self._own_cpu_s = own_cpu_s
        self._began, self._others_s = time.monotonic(), _busy_s() - own_cpu_s()

    def busy_cores(self) -> float:
        """Return how many cores the other processes kept busy."""
        return max(_busy_s() - self._own_cpu_s() - self._others_s, 0.0) / (time.monotonic() - self._began)


def busy_warning(busy_cores: float) -> str | None:
    """Return a warning for a report if other processes kept so many cores busy; None if they are too few to matter."""
    if busy_cores < MIN_BUSY_CORES:
        return None
    return f"other processes kept {busy_cores:.1f} of {len(os.sched_getaffinity(0))} cores busy while it was timed"


def _busy_s() -> float:
    """Return the CPU seconds of all processes together on the cores that this one may use."""
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    return sum(int(line[column]) for line in lines if line[0] in usable for column in _BUSY_COLUMNS) / TICKS
