"""The arithmetic from what the referee's clock showed to the times of a report.

A gated call lasts from the opening of its gate until the referee has copied the results. What the gate costs an empty
kernel, and the copy after a kernel that only writes the results, is taken off. Both were measured in the same process
before a candidate was loaded. A call awake lasts from the moment its processes go on until the referee has copied the
results. Nothing is taken off there, and the time of an empty call is in doubt: a candidate could have worked during it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stark_worker.protocol.errors import Failure, MachineryFault, Outcome
from stark_worker.protocol.intervals import median_interval
from stark_worker.protocol.report import Timing

MIN_MS = 1e-4  # of one call: a shorter time is noise
MIN_SWITCH_MS = 0.02  # between two processes on a GPU
MIN_SWITCH_SHARE = 0.9  # of the shortest gate and copy without a candidate; they vary by a few microseconds
# A process that was stopped launches up to twice as slowly: half of its launch counts beyond an allowance, and as much
# again is in doubt.
LAUNCH_SHARE, HIDDEN_LAUNCH_MS = 0.5, 0.3
PROCESS_DOUBT_MS = 0.0005  # the same kernel in two processes differs by as much
MAX_WRITE_RATIO = 1.1  # of writing the inputs next to a loaded candidate to writing them before
MAX_DISTURBED, MAX_DISTURBED_SHARE = 3, 0.1  # of all calls; more are no accident

NO_SWITCH = (
    "This GPU runs several processes at once, so no process can time another. Stop the CUDA Multi-Process Service"
    " (echo quit | nvidia-cuda-mps-control), or use another GPU."
)


class CallTimes(NamedTuple):
    """Times of one call by the referee's clock, in milliseconds."""

    total_ms: float  # from the gate or the request until the referee has copied the results
    done_ms: float  # from there until the candidate's last operation, or its message
    launch_ms: float = 0.0  # for which the processes ran to queue a gated call
    writing_ms: float = 0.0  # of inputs and poison, by the device
    flush_ms: float = 0.0  # of the cache
    probe_ms: float = 0.0  # of the referee's own kernel just before the call


@dataclass(frozen=True)
class Calibration:
    """Times of calls made before a candidate was loaded: some are empty, others only write the results."""

    calls: tuple[CallTimes, ...]
    fills: tuple[CallTimes, ...] = ()

    def __add__(self, other: Calibration) -> Calibration:
        """Join the calls of two processes: what is taken off is the same for both sides of a comparison."""
        return Calibration(self.calls + other.calls, self.fills + other.fills)

    def median(self, field: Callable[[CallTimes], float]) -> float:
        return statistics.median(map(field, self.calls))

    @property
    def done_ms(self) -> float:
        return self.median(lambda call: call.done_ms)

    @property
    def overhead_ms(self) -> float:
        """The time around the work of a gated call."""
        return self.done_ms + statistics.median(self._copies_ms)

    @property
    def error_ms(self) -> float:
        """The possible error of ``overhead_ms``, with the confidence of a report's intervals."""
        return sum(_half_width(times) for times in ([call.done_ms for call in self.calls], self._copies_ms))

    @property
    def _copies_ms(self) -> list[float]:
        return [call.total_ms - call.done_ms for call in self.fills or self.calls]

    @property
    def switch_ms(self) -> float:
        """The time in which the device changes to the referee's process after work of the candidate's."""
        return self.median(lambda call: call.total_ms - call.done_ms) - self.median(lambda call: call.probe_ms)

    def require_switch(self) -> None:
        """Refuse a device on which processes run at the same time: no rule below would hold."""
        if self.switch_ms < MIN_SWITCH_MS:
            raise MachineryFault(NO_SWITCH)

    def is_early(self, call: CallTimes) -> bool:
        """True if the device cannot have changed to the candidate's process before the done word, and back after it."""
        done_ms, copy_ms = min(each.done_ms for each in self.calls), min(self._copies_ms)
        return call.done_ms < MIN_SWITCH_SHARE * done_ms or call.total_ms - call.done_ms < MIN_SWITCH_SHARE * copy_ms

    def is_disturbed(self, call: CallTimes) -> bool:
        """True if one of these took longer, as happens if anything of a candidate runs before the gate."""
        slack_ms = self.switch_ms / 4
        return (
            call.probe_ms > max(each.probe_ms for each in self.calls) + slack_ms
            or call.flush_ms > max(each.flush_ms for each in self.calls) + slack_ms
            or call.writing_ms > MAX_WRITE_RATIO * self.median(lambda each: each.writing_ms) + slack_ms
        )


@dataclass(frozen=True)
class Measurement:
    """Everything that was measured of one candidate."""

    is_gated: bool
    empty: Calibration
    calls: tuple[CallTimes, ...]
    disturbed: int = 0  # calls that were repeated because something ran before their gate
    rechecked: tuple[CallTimes, ...] = ()  # empty calls in turns with the timed ones, in the opponent's process


def timing_of(measured: Measurement) -> Timing:
    """Return the times that count and their doubt; raise ``Failure`` if they cannot be true."""
    _refuse_disturbed(measured)
    if not measured.is_gated:
        return Timing(tuple(call.total_ms for call in measured.calls), measured.empty.done_ms)
    _refuse_early(measured)
    empty = measured.empty
    samples = tuple(max(call.total_ms - empty.overhead_ms, MIN_MS) for call in measured.calls)
    launching_ms = _launching_ms(measured)
    if launching_ms > statistics.median(samples):  # what takes longer to launch is as slow as its launches
        return Timing(tuple(max(sample, launching_ms) for sample in samples), launching_ms)
    return Timing(samples, PROCESS_DOUBT_MS, empty.error_ms + _drift_ms(measured))


def _launching_ms(measured: Measurement) -> float:
    """Return the host's time to launch one call, beyond what can be hidden."""
    launch_ms = statistics.median(call.launch_ms for call in measured.calls)
    return LAUNCH_SHARE * (launch_ms - measured.empty.median(lambda call: call.launch_ms)) - HIDDEN_LAUNCH_MS


def _drift_ms(measured: Measurement) -> float:
    """Return how far later empty calls differ from those before the candidate was loaded; 0 if there are none."""
    if not measured.rechecked:
        return 0.0
    later_ms = statistics.median(call.total_ms for call in measured.rechecked)
    return abs(later_ms - measured.empty.median(lambda call: call.total_ms))


def _half_width(times_ms: Sequence[float]) -> float:
    low, high = median_interval(times_ms)
    return (high - low) / 2


def _refuse_early(measured: Measurement) -> None:
    early = sum(map(measured.empty.is_early, measured.calls))
    if early > 1:
        done_ms = statistics.median(call.done_ms for call in measured.calls)
        raise Failure(
            Outcome.REJECTED,
            f"{early} calls signalled their end too early, typically after {done_ms:.4f} ms. An empty kernel needs"
            f" {measured.empty.done_ms:.4f} ms. All work has to be on the current stream when forward() returns.",
            "done_too_early",
        )


def _refuse_disturbed(measured: Measurement) -> None:
    most = max(MAX_DISTURBED, MAX_DISTURBED_SHARE * len(measured.calls))
    if measured.disturbed > most:
        raise Failure(
            Outcome.REJECTED,
            f"In {measured.disturbed} calls something ran on the device before the inputs were complete."
            " All work has to wait for the current stream.",
            "ran_before_gate",
        )


def describe_times(measured: Measurement) -> str:
    """Describe for a report what was calibrated and what was left out."""
    empty = measured.empty
    total_ms = statistics.median(call.total_ms for call in measured.calls)
    launch_ms = statistics.median(call.launch_ms for call in measured.calls)
    if not measured.is_gated:
        return f"awake: {total_ms:.4f} ms from request to copy; {empty.done_ms:.4f} ms of an empty call are in doubt"
    return (
        f"gated: {total_ms:.4f} ms from gate to copy, less {empty.overhead_ms:.4f} ms around the work; launching"
        f" {launch_ms:.4f} ms; a switch of processes {empty.switch_ms:.4f} ms; {measured.disturbed} calls repeated"
    )
