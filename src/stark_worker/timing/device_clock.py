"""Reads the device's event times and accepts them if the referee's clock confirms them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from stark_worker.protocol.errors import Failure, Outcome
from stark_worker.timing.overhead import (
    CLOCK_AGREEMENT_SHARE,
    CLOCK_LIE_SHARE,
    MAX_CLOCK_MS,
    MIN_CLOCK_MS,
    Overhead,
    burst_length,
)
from stark_worker.timing.sample import Sample


def median_device_ms(samples: Sequence[Sample]) -> float:
    """Return the time of one call by the device's events, as the candidate's process reports it."""
    return statistics.median(sample.device_ms or 0.0 for sample in samples)


def read_device_ms(reported: Any, calls: int) -> float:
    """Return the time of one call from the event times in a message; 0 if they are not times.

    The median of several ignores a short delay of the device. If it is far from the mean, return the mean, the only
    one that the referee's clock can confirm.
    """
    if (
        not isinstance(reported, list)
        or len(reported) != calls
        or not all(type(ms) is float and 0.0 <= ms <= MAX_CLOCK_MS for ms in reported)
    ):
        return 0.0
    times: list[float] = reported or [0.0]
    median, mean = statistics.median(times), statistics.fmean(times)
    return median if abs(median - mean) <= CLOCK_AGREEMENT_SHARE * mean else mean


def confirmed_device_times(samples: Sequence[Sample], overhead: Overhead) -> tuple[float, ...] | None:
    """Return the device's times if the referee's clock confirms them; None if only the referee's clock counts."""
    times = tuple(
        max(sample.device_ms or 0.0, MIN_CLOCK_MS) + overhead.outside_clock_ms(sample) / sample.length
        for sample in samples
    )
    outside_ms = overhead.typical_ms(samples)
    device_ms, length = statistics.median(times), burst_length(samples)
    if abs(outside_ms - device_ms) <= CLOCK_AGREEMENT_SHARE * outside_ms + overhead.doubt_ms / length:
        return times
    if device_ms >= CLOCK_LIE_SHARE * outside_ms:
        return None
    raise Failure(
        Outcome.REJECTED,
        f"The clocks disagree: the device's events in the candidate's process say {device_ms:.4f} ms, the"
        f" referee's clock says {outside_ms:.4f} ms after {overhead.single_ms:.4f} ms for the handshake."
        " All work has to be finished, or queued on the current stream, when forward() returns.",
        "clock_disagreement",
    )
