"""One timed sample, as the referee measured it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """Times of one call, or of a burst of ``length`` calls, in milliseconds.

    ``forward_ms`` lasts until "done", ``late_ms`` from there until the outputs are handed over. ``own_copy_ms`` is the
    referee's own copy of as much memory just afterwards. ``device_ms`` is one call by the device's events. If calls
    are launched before their inputs are written, ``launch_ms`` and ``writing_ms`` are the times of either.
    """

    forward_ms: float
    late_ms: float
    device_ms: float | None = None
    own_copy_ms: float = 0.0
    length: int = 1
    launch_ms: float = 0.0
    writing_ms: float = 0.0
