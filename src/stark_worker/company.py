"""Who else computes on this machine while something is timed on the host, which takes longer by that. No torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from stark_worker.processes import TICKS

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
