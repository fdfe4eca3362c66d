"""The overhead of a request, and the arithmetic that takes it off the referee's clock.

The referee's clock times every call from outside; a candidate cannot reach it. The cost of the handshake is measured
before a candidate is loaded. On a GPU the candidate's process also reads the device's events. They are finer, and are
reported if the referee's clock confirms them. A short kernel is called in bursts, because the handshake would hide it.
If the handshake is too large even then, the referee's clock alone is reported, with the full doubt about the handshake.

Work is launched before its inputs are written, so neither clock sees a launch. The referee times launches separately;
a call that takes longer to launch than to compute counts as long as its launch. A candidate that waits for the device
in forward() cannot launch everything first: there the clocks run from the call on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stark_worker.timing.sample import Sample

MIN_CLOCK_MS, MAX_CLOCK_MS = 1e-4, 1e9  # limits of a clock's reading
HOST_BURST_MS = 20.0  # length of a sample on the host, where waking up takes up to a few milliseconds
DEVICE_BURST_MS = 10.0  # length of a sample on a GPU; a call longer than half of it is one sample
MIN_BURST_TO_DOUBT_RATIO = 4.0  # a shorter burst cannot confirm the device's clock
CLOCK_LIE_SHARE = 0.5  # a device's clock that shows less than this share of the referee's is a lie
MAX_HANDSHAKE_SHARE = 0.5  # of a single call on the host, that may be taken off as handshake
CLOCK_AGREEMENT_SHARE, MIN_JITTER_MS = 0.1, 0.05
HIDDEN_LAUNCH_MS = 0.1  # of one call's launch: KernelBench hides as much while it empties the device's cache
MAX_LOADED_MS = 0.1  # a loaded candidate may lengthen the handshake by this much
WRITE_SLACK_SHARE, WRITE_SLACK_MS = 0.05, 0.05  # writing may take this much longer than alone before the rest counts
HAND_OVER_MS = 0.02  # for handing over one call's outputs on the host, without copying them
COPY_SLACK_RATIO = 1.1  # a copy may take this much longer than the referee's own before the rest counts as computing


@dataclass(frozen=True)
class Overhead:
    """Costs of a request without the candidate's work, in milliseconds."""

    single_ms: float  # handshake around one call
    jitter_ms: float  # variation of it
    burst_ms: float  # handshake around a burst
    copy_ms: float  # handing over one call's outputs
    copy_more_ms: float = 0.0  # handing over each further call's
    open_ms: float = 0.0  # handshake around one call whose inputs are already written
    launch_ms: float = 0.0  # launching no call
    call_ms: float = 0.0  # launching a call that does nothing
    write_ms: float = 0.0  # writing one call's inputs
    write_more_ms: float = 0.0  # writing each further call's
    loaded_ms: float = 0.0  # extra handshake around a burst once a candidate is loaded

    @classmethod
    def of(
        cls,
        singles: Sequence[Sample],
        bursts: Sequence[Sample],
        opened: Sequence[Sample] = (),
        burst_calls: Sequence[Sample] = (),
    ) -> Overhead:
        """Derive the overhead from samples that compute nothing.

        ``singles`` are single calls, ``bursts`` bursts of no calls. ``opened`` are single calls with inputs written
        before, ``burst_calls`` bursts of the greatest length; without these, each further call costs what one costs.
        """
        single_ms = statistics.median(sample.forward_ms for sample in singles)
        away_ms = statistics.median(abs(sample.forward_ms - single_ms) for sample in singles)
        launch_ms = statistics.median(sample.launch_ms for sample in bursts or singles)
        copy_ms = statistics.median(sample.late_ms for sample in singles)
        more_ms = [(sample.late_ms - copy_ms) / (sample.length - 1) for sample in burst_calls] or [copy_ms]
        return cls(
            single_ms=single_ms,
            jitter_ms=max(2.0 * away_ms, MIN_JITTER_MS),
            burst_ms=statistics.median(sample.forward_ms for sample in bursts or singles),
            copy_ms=copy_ms,
            copy_more_ms=max(statistics.median(more_ms), 0.0),
            open_ms=statistics.median(sample.forward_ms for sample in opened or singles),
            launch_ms=launch_ms,
            call_ms=max(statistics.median(sample.launch_ms for sample in singles) - launch_ms, 0.0),
            write_ms=statistics.median(sample.writing_ms for sample in singles),
        )

    def with_writes(self, took_ms: Sequence[float], places: int) -> Overhead:
        """Add the cost of writing each further call's inputs."""
        more_ms = (statistics.median(took_ms) - self.write_ms) / max(places - 1, 1)
        return replace(self, write_more_ms=max(more_ms, 0.0))

    def without_gate(self) -> Overhead:
        """Return the overhead of calls that start with their inputs written."""
        return replace(self, single_ms=self.open_ms, burst_ms=self.open_ms - self.call_ms)

    def with_candidate(self, bursts: Sequence[Sample]) -> Overhead:
        """Add the extra handshake of a loaded candidate: a device switches more slowly to a process with more on it.

        The candidate's process can influence this, so it is bounded.
        """
        longer_ms = statistics.median(sample.forward_ms for sample in bursts) - self.burst_ms
        return replace(self, loaded_ms=min(max(longer_ms, 0.0), MAX_LOADED_MS))

    def cap_loaded_at(self, other: Overhead) -> Overhead:
        """Limit the extra handshake of the loaded candidate to that of ``other``."""
        return replace(self, loaded_ms=min(self.loaded_ms, other.loaded_ms))

    @property
    def doubt_ms(self) -> float:
        """Possible error of the handshake that is taken off one request."""
        return self.jitter_ms + MAX_LOADED_MS

    def confirms(self, samples: Sequence[Sample]) -> bool:
        """True if the samples are long enough for the referee's clock to confirm or contradict the device's."""
        length = burst_length(samples)
        return self.typical_ms(samples) * length >= MIN_BURST_TO_DOUBT_RATIO * (
            self.doubt_ms + self.undetectable_ms(length)
        )

    def upper_bound_ms(self, sample: Sample) -> float:
        """Return the longest time that a call can have taken. For a single call the doubt would be too large a part."""
        doubt_ms = self.doubt_ms if sample.length > 1 else 0.0
        return self.per_call_ms(sample) + (doubt_ms + self.undetectable_ms(sample.length)) / sample.length

    def unsure_ms(self, samples: Sequence[Sample], equal_bursts: bool) -> float:
        """Return the possible error of one call by the referee's clock, common to all samples.

        A handshake takes one process longer than another. Without ``equal_bursts`` all doubt counts.
        """
        length = burst_length(samples)
        return (
            self.jitter_ms if equal_bursts and length > 1 else self.doubt_ms + self.undetectable_ms(length)
        ) / length

    def burst_length(self, samples: Sequence[Sample], most: int) -> int:
        """Return the number of calls of one sample, at most ``most``."""
        per_call_ms = self.typical_ms(samples)
        if samples[0].device_ms is None:
            return min(math.ceil(HOST_BURST_MS / per_call_ms), most)
        launching_ms = statistics.median(map(self._launching_ms, samples))
        return max(min(int(DEVICE_BURST_MS / max(per_call_ms, launching_ms)), most), 1)

    def late_ms(self, sample: Sample) -> float:
        """Return the time after "done" beyond handing over; it counts as work."""
        copying_ms = max(self.copy_ms + self.copy_more_ms * (sample.length - 1), sample.own_copy_ms)
        if sample.device_ms is not None:  # messages can vary by more than a short copy takes
            return max(sample.late_ms - COPY_SLACK_RATIO * copying_ms - self.jitter_ms, 0.0)
        if (calling_ms := self._calling_ms(sample)) < sample.own_copy_ms:
            # Too short to have written the outputs: a candidate may compute while it should only copy.
            copying_ms = min(copying_ms, calling_ms + HAND_OVER_MS * sample.length)
        return max(sample.late_ms - COPY_SLACK_RATIO * copying_ms, 0.0)

    def held_up_ms(self, sample: Sample) -> float:
        """Return how long writing the inputs was held up: so long the candidate's work ran on the device."""
        return max(sample.writing_ms - self._writing_ms(sample.length) - self.undetectable_ms(sample.length), 0.0)

    def undetectable_ms(self, length: float) -> float:
        """Return the variation of writing the inputs of so many calls; a shorter delay is not detected."""
        return WRITE_SLACK_SHARE * self._writing_ms(length) + WRITE_SLACK_MS if self.write_ms else 0.0

    def _writing_ms(self, length: float) -> float:
        return self.write_ms + self.write_more_ms * (length - 1)

    def outside_clock_ms(self, sample: Sample) -> float:
        """Return the work done before the clock started and after it stopped."""
        return self.held_up_ms(sample) + self.late_ms(sample)

    def launching_ms(self, sample: Sample) -> float:
        """Return the host's time to launch one call, beyond what can be hidden."""
        return self._launching_ms(sample) - self.call_ms - HIDDEN_LAUNCH_MS

    def _launching_ms(self, sample: Sample) -> float:
        return (sample.launch_ms - self.launch_ms) / sample.length

    def typical_ms(self, samples: Sequence[Sample]) -> float:
        """Return the median time of one call by the referee's clock."""
        return statistics.median(map(self.per_call_ms, samples))

    def per_call_ms(self, sample: Sample) -> float:
        """Return the referee's clock without the handshake. It is never zero: a clock has a resolution."""
        return (self._calling_ms(sample) + self.outside_clock_ms(sample)) / sample.length

    def _calling_ms(self, sample: Sample) -> float:
        """Return the time of all calls until "done", without the handshake."""
        handshake_ms = self.single_ms if sample.length == 1 else self.burst_ms + self.loaded_ms
        if sample.device_ms is None and sample.length == 1:
            handshake_ms = min(handshake_ms, MAX_HANDSHAKE_SHARE * sample.forward_ms)
        return max(sample.forward_ms - handshake_ms, MIN_CLOCK_MS)


def burst_length(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.length for sample in samples)
