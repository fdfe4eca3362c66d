"""The arithmetic from what the referee's clock showed to the times of a report.

A gated call lasts from the opening of its gate until its done word. What this takes for an empty kernel, in the same
process before a candidate was loaded, is taken off. The device then changes back to the referee's process. It does so
later if work is left: what exceeds the time after a kernel that moves the certain bytes is in doubt, or counts.

A call awake lasts from the moment it can begin until the referee has copied the results. Nothing is taken off there,
and the time of an empty call is in doubt: a candidate could have worked during it.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stark_worker.protocol.errors import Failure, MachineryFault, Outcome
from stark_worker.protocol.intervals import median_interval
from stark_worker.protocol.report import Timing

MIN_SAMPLES = 8  # fewer give no interval of 99 %
DISMISSED_RATIO = 1.5
MIN_MS = 1e-3  # of one call beyond an empty one: a shorter time is noise
MIN_SWITCH_MS = 0.02  # between two processes on a GPU
MIN_SWITCH_SHARE = 0.9  # of the shortest times without a candidate; they vary by a few microseconds
# A process that was stopped launches up to twice as slowly, the first kernel by up to 0.7 ms. So half of its launch
# counts beyond an allowance, and as much again is in doubt.
LAUNCH_SHARE, HIDDEN_LAUNCH_MS = 0.5, 0.5
PROCESS_DOUBT_MS = 0.0005  # the same kernel in two processes differs by as much
MAX_LATE_MS = 0.002  # in doubt after the done word: the device needs longer to be back if a kernel touched more memory
MAX_WRITE_RATIO = 1.1  # of writing the inputs next to a loaded candidate to writing them before
MAX_DISTURBED, MAX_DISTURBED_SHARE = 3, 0.1  # of all calls; more are no accident

NO_SWITCH = (
    "This GPU runs several processes at once, so no process can time another. Stop the CUDA Multi-Process Service"
    " (echo quit | nvidia-cuda-mps-control), or use another GPU."
)


class CallTimes(NamedTuple):
    """Times of one call by the referee's clock, in milliseconds."""

    total_ms: float  # from the gate until the device is back with the referee; awake until the results are copied
    done_ms: float  # from there until the candidate's last operation, or its message
    launch_ms: float = 0.0  # for which the processes ran to queue a gated call
    writing_ms: float = 0.0  # of inputs and poison, by the device
    flush_ms: float = 0.0  # of the cache
    probe_ms: float = 0.0  # of the referee's own kernel just before the call

    @property
    def return_ms(self) -> float:
        """The time after the done word until the device is back."""
        return self.total_ms - self.done_ms


@dataclass(frozen=True)
class Calibration:
    """Times of calls in one process before a candidate was loaded: some are empty, others move the certain bytes."""

    calls: tuple[CallTimes, ...]
    moving: tuple[CallTimes, ...] = ()

    @functools.cached_property
    def median(self) -> CallTimes:
        """The median of each time of empty calls."""
        return CallTimes(*map(statistics.median, zip(*self.calls, strict=True)))

    @functools.cached_property
    def error_ms(self) -> float:
        """The possible error of the median until the done word, with the confidence of a report's intervals."""
        low, high = median_interval([call.done_ms for call in self.calls])
        return (high - low) / 2

    @functools.cached_property
    def return_ms(self) -> float:
        """The time in which the device is back at least after a call that moved data: more than after none."""
        return median_interval([call.return_ms for call in self.moving or self.calls])[0]

    @property
    def switch_ms(self) -> float:
        """The time in which the device changes to the referee's process after work of the candidate's."""
        return statistics.median(call.return_ms for call in self.calls) - self.median.probe_ms

    def drift_ms(self, later: Sequence[CallTimes]) -> float:
        """Return how far later empty calls in the same process differ from these; 0 if there are none."""
        return abs(statistics.median(call.done_ms for call in later) - self.median.done_ms) if later else 0.0

    def require_switch(self) -> None:
        """Refuse a device on which processes run at the same time: no rule below would hold."""
        if self.switch_ms < MIN_SWITCH_MS:
            raise MachineryFault(NO_SWITCH)

    def is_early(self, call: CallTimes) -> bool:
        """True if the device cannot have changed to the candidate's process before the done word, and back after it."""
        done_ms, return_ms = self._shortest_ms
        return call.done_ms < MIN_SWITCH_SHARE * done_ms or call.return_ms < MIN_SWITCH_SHARE * return_ms

    def is_disturbed(self, call: CallTimes) -> bool:
        """True if one of these took longer, as happens if anything of a candidate runs before the gate."""
        longest, slack_ms = self._longest, self.switch_ms / 4
        return (
            call.probe_ms > longest.probe_ms + slack_ms
            or call.flush_ms > longest.flush_ms + slack_ms
            or call.writing_ms > MAX_WRITE_RATIO * self.median.writing_ms + slack_ms
        )

    @functools.cached_property
    def _longest(self) -> CallTimes:
        return CallTimes(*map(max, zip(*self.calls, strict=True)))

    @functools.cached_property
    def _shortest_ms(self) -> tuple[float, float]:
        """The shortest times until the done word, and from there until the device is back."""
        return min(each.done_ms for each in self.calls), min(each.return_ms for each in self.calls)


def is_dismissed(samples_ms: Sequence[float], best_ms: float | None) -> bool:
    """True if a candidate is surely so much slower than the best one that more samples decide nothing."""
    if best_ms is None or len(samples_ms) < MIN_SAMPLES:
        return False
    return median_interval(samples_ms)[0] > DISMISSED_RATIO * best_ms


@dataclass(frozen=True)
class Measurement:
    """Everything that was measured of one candidate."""

    is_gated: bool
    empty: Calibration
    calls: tuple[CallTimes, ...]
    disturbed: int = 0  # calls that were repeated because something ran before their gate
    drift_ms: float = 0.0  # of empty calls in turns with the timed ones, in the opponent's process


def timing_of(measured: Measurement) -> Timing:
    """Return the times that count and their doubt; raise ``Failure`` if they cannot be true."""
    _refuse_disturbed(measured)
    if not measured.is_gated:
        return Timing(tuple(call.total_ms for call in measured.calls), measured.empty.median.done_ms)
    _refuse_early(measured)
    late_ms = max(_late_ms(measured), 0.0)
    free_ms = MAX_LATE_MS if late_ms <= MAX_LATE_MS else 0.0
    samples = tuple(_work_ms(call, measured.empty, free_ms) for call in measured.calls)
    launching_ms = _launching_ms(measured)
    if launching_ms > statistics.median(samples):  # what takes longer to launch is as slow as its launches
        return Timing(tuple(max(sample, launching_ms) for sample in samples), launching_ms)
    chance_ms = math.hypot(PROCESS_DOUBT_MS, measured.empty.error_ms, measured.drift_ms)  # independent of each other
    return Timing(samples, chance_ms + min(late_ms, free_ms))


def _work_ms(call: CallTimes, empty: Calibration, free_ms: float) -> float:
    """Return the time until the done word, and of all work after it but for ``free_ms``."""
    later_ms = max(call.return_ms - empty.return_ms - free_ms, 0.0)
    return max(call.done_ms - empty.median.done_ms, MIN_MS) + later_ms


def _late_ms(measured: Measurement) -> float:
    """Return how much longer than expected the device usually needed to be back."""
    return statistics.median(call.return_ms for call in measured.calls) - measured.empty.return_ms


def _launching_ms(measured: Measurement) -> float:
    """Return the host's time to launch one call, beyond what can be hidden."""
    launch_ms = statistics.median(call.launch_ms for call in measured.calls)
    return LAUNCH_SHARE * (launch_ms - measured.empty.median.launch_ms) - HIDDEN_LAUNCH_MS


def _refuse_early(measured: Measurement) -> None:
    early = sum(map(measured.empty.is_early, measured.calls))
    if early > 1:
        done_ms = statistics.median(call.done_ms for call in measured.calls)
        raise Failure(
            Outcome.REJECTED,
            f"{early} calls signalled their end too early, typically after {done_ms:.4f} ms. An empty kernel needs"
            f" {measured.empty.median.done_ms:.4f} ms. All work has to be on the current stream when forward()"
            " returns.",
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
    empty = measured.empty.median
    if not measured.is_gated:
        total_ms = statistics.median(call.total_ms for call in measured.calls)
        return f"awake: {total_ms:.4f} ms from request to copy; {empty.done_ms:.4f} ms of an empty call are in doubt"
    done_ms, launch_ms = (statistics.median(times) for times in list(zip(*measured.calls, strict=True))[1:3])
    return (
        f"gated: {done_ms:.4f} ms from gate to done, less {empty.done_ms:.4f} ms of an empty call; back"
        f" {1e3 * _late_ms(measured):+.1f} us later than after moving the data; launching {launch_ms:.4f} ms;"
        f" a switch of processes {measured.empty.switch_ms:.4f} ms; {measured.disturbed} calls repeated"
    )
