"""TODO."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """What was seen of one call, or of ``length`` calls in a row, in milliseconds.

    ``forward_ms`` until "done", ``late_ms`` from there until handed over, ``own_copy_ms`` how long the referee itself
    took just afterwards to copy as much; ``device_ms`` is of one call, by the device's events. Where calls are launched
    before their inputs are there, ``launch_ms`` is what that took, and ``writing_ms`` how long the device then took to
    write the inputs.
    """

    forward_ms: float
    late_ms: float
    device_ms: float | None = None
    own_copy_ms: float = 0.0
    length: int = 1
    launch_ms: float = 0.0
    writing_ms: float = 0.0
