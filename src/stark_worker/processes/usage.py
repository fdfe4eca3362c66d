"""How much memory a candidate's process takes on the host, as the system says and not the process. No torch."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from stark_worker.processes.process_tree import TICKS

_RESET_PEAK = "5"


class Footprint:
    """What a process takes at most from here on, of memory that is its own alone: neither files nor the arena.

    Counted in pages that were touched, so it is known to a few megabytes. None where the system does not tell.
    """

    def __init__(self, process: int) -> None:
        self._entry = Path("/proc", str(process))
        try:
            (self._entry / "clear_refs").write_text(_RESET_PEAK)
            self._before: int | None = self._sizes()["RssAnon"]
        except (OSError, KeyError):
            self._before = None

    def more_bytes(self) -> int | None:
        """The peak beyond what there was in the beginning."""
        if self._before is None:
            return None
        try:
            now = self._sizes()
            return now["VmHWM"] - now["RssFile"] - now["RssShmem"] - self._before
        except (OSError, KeyError):  # it has ended
            return None

    def _sizes(self) -> dict[str, int]:
        found = re.findall(r"^(\w+):\s*(\d+) kB$", (self._entry / "status").read_text(), re.MULTILINE)
        return {name: int(size) * 1024 for name, size in found}


NOTICED = 0.25  # of a core: below that it is what every system does by itself


# Of a line of /proc/stat: user, nice, system, both kinds of interrupts, and what was taken by others of which this
# system, a guest, sees nothing else.
COMPUTING = (1, 2, 3, 6, 7, 8)


class Company:
    """Those who compute from here on, but for us: ``ours`` is what we have computed ourselves, in seconds."""

    def __init__(self, ours: Callable[[], float]) -> None:
        self._ours = ours
        self._began, self._others_s = time.monotonic(), _busy_s() - ours()

    def cores(self) -> float:
        """How many cores they kept busy."""
        return max(_busy_s() - self._ours() - self._others_s, 0.0) / (time.monotonic() - self._began)


def told(cores: float) -> str | None:
    """What is to be said of who kept so many cores busy; None where that is nothing."""
    if cores < NOTICED:
        return None
    return f"others kept {cores:.1f} of {len(os.sched_getaffinity(0))} cores busy while it was timed"


def _busy_s() -> float:
    """What all processes together have computed on the cores that we may use."""
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    return sum(int(line[place]) for line in lines if line[0] in ours for place in COMPUTING) / TICKS
