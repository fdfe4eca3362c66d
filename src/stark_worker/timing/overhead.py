"""What the clocks say, and whether to believe it.

The referee's clock sees every call from the outside and cannot be reached by a candidate; what the handshake takes by
itself is known from before there was a candidate. On a GPU the device's events are taken as well, by the candidate's
process: they are finer, so they are reported where the referee's clock confirms them. A short kernel drowns in the
handshake, so many are called in a row between two looks at the referee's clock; of the shortest, where the handshake is
still too much of that, the referee's clock alone is reported, with all that is doubtful about the handshake. Work is
launched before its inputs are there, so that neither clock sees a launch; the referee takes the time of it by itself,
and what takes longer to launch than to compute is as slow as its launches. Who waits for the device in forward() cannot
launch everything before: there the clocks run from the call on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stark_worker.timing.sample import Sample

MIN_CLOCK_MS, MAX_CLOCK_MS = 1e-4, 1e9  # that a clock can say


HOST_BURST_MS = 20.0  # on the host, how long a sample should take: waking up takes up to a few milliseconds


DEVICE_BURST_MS = 10.0  # the same on a GPU; a call of more than half of it is a sample by itself


MIN_BURST_TO_DOUBT_RATIO = (
    4.0  # how many times the doubt about the handshake a burst has to take for the device's clock to count
)


CLOCK_LIE_SHARE = 0.5  # a device's clock that tells less than this share of the referee's is a lie


MAX_HANDSHAKE_SHARE = 0.5  # of a single call on the host, the share that may be taken for the handshake


CLOCK_AGREEMENT_SHARE, MIN_JITTER_MS = 0.1, 0.05


HIDDEN_LAUNCH_MS = 0.1  # of launching a call: as much as KernelBench hides by emptying the device's cache meanwhile


MAX_LOADED_MS = 0.1  # the most by which a handshake may take longer once a candidate is loaded


WRITE_SLACK_SHARE, WRITE_SLACK_MS = 0.05, 0.05  # how much longer than alone writing may take before the rest counts


HAND_OVER_MS = 0.02  # the most that handing over the outputs of a call on the host takes beside copying them


COPY_SLACK_RATIO = 1.1  # how much longer than the referee's own a copy may take before the rest counts as computing


@dataclass(frozen=True)
class Overhead:
    """What a request costs by itself: the handshake around one call, by how much that varies, the handshake around
    several calls in a row, handing over one call's outputs, and those of a further one, the handshake around one call
    where nothing waits for inputs, launching nothing at all, or a call of nothing, writing the inputs of one call, and
    of a further one, and by how much the handshake around several calls is longer once a candidate is loaded.
    """

    single_ms: float
    jitter_ms: float
    burst_ms: float
    copy_ms: float
    copy_more_ms: float = 0.0
    open_ms: float = 0.0
    launch_ms: float = 0.0
    call_ms: float = 0.0
    write_ms: float = 0.0
    write_more_ms: float = 0.0
    loaded_ms: float = 0.0

    @classmethod
    def of(
        cls,
        singles: Sequence[Sample],
        bursts: Sequence[Sample],
        opened: Sequence[Sample] = (),
        burst_calls: Sequence[Sample] = (),
    ) -> Overhead:
        """Read off calls of something that does nothing, bursts of no calls, calls for which all was there, and bursts
        of as many calls as there can be; without these each call is given what a single one takes to hand over.
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
        """The same with what it takes to write the inputs of several calls."""
        more_ms = (statistics.median(took_ms) - self.write_ms) / max(places - 1, 1)
        return replace(self, write_more_ms=max(more_ms, 0.0))

    def without_gate(self) -> Overhead:
        """The same for calls that begin when everything is there."""
        return replace(self, single_ms=self.open_ms, burst_ms=self.open_ms - self.call_ms)

    def with_candidate(self, bursts: Sequence[Sample]) -> Overhead:
        """The same once a candidate is loaded: it takes a device longer to turn to a process that has more on it.

        By how much is for the candidate's process to say, so what it may gain is bounded.
        """
        longer_ms = statistics.median(sample.forward_ms for sample in bursts) - self.burst_ms
        return replace(self, loaded_ms=min(max(longer_ms, 0.0), MAX_LOADED_MS))

    def cap_loaded_at(self, other: Overhead) -> Overhead:
        """The same where another one is known, by which what is loaded makes no more of a difference."""
        return replace(self, loaded_ms=min(self.loaded_ms, other.loaded_ms))

    @property
    def doubt_ms(self) -> float:
        """By how much the handshake of one request may differ from what it is taken for."""
        return self.jitter_ms + MAX_LOADED_MS

    def confirms(self, samples: Sequence[Sample]) -> bool:
        """Whether samples take long enough for the referee's clock to confirm or contradict the device's."""
        length = burst_length(samples)
        return self.typical_ms(samples) * length >= MIN_BURST_TO_DOUBT_RATIO * (
            self.doubt_ms + self.undetectable_ms(length)
        )

    def upper_bound_ms(self, sample: Sample) -> float:
        """What a call can have taken at most; in a burst whatever the handshake was, which would be too much of one."""
        doubt_ms = self.doubt_ms if sample.length > 1 else 0.0
        return self.per_call_ms(sample) + (doubt_ms + self.undetectable_ms(sample.length)) / sample.length

    def unsure_ms(self, samples: Sequence[Sample], equal_bursts: bool) -> float:
        """By how much what the referee's clock says of one call may be off, for all samples alike: a handshake takes
        one process longer than another, and all doubt weighs more where another's bursts are not ``equal_bursts``.
        """
        length = burst_length(samples)
        return (
            self.jitter_ms if equal_bursts and length > 1 else self.doubt_ms + self.undetectable_ms(length)
        ) / length

    def burst_length(self, samples: Sequence[Sample], most: int) -> int:
        """How many calls in a row make a sample, of as many as there is room for."""
        per_call_ms = self.typical_ms(samples)
        if samples[0].device_ms is None:
            return min(math.ceil(HOST_BURST_MS / per_call_ms), most)
        launching_ms = statistics.median(map(self._launching_ms, samples))
        return max(min(int(DEVICE_BURST_MS / max(per_call_ms, launching_ms)), most), 1)

    def late_ms(self, sample: Sample) -> float:
        """What was done after "done" beyond handing over: work like any other."""
        copying_ms = max(self.copy_ms + self.copy_more_ms * (sample.length - 1), sample.own_copy_ms)
        if sample.device_ms is not None:  # there a copy can be so short that messages about it vary by more
            return max(sample.late_ms - COPY_SLACK_RATIO * copying_ms - self.jitter_ms, 0.0)
        if (calling_ms := self._calling_ms(sample)) < sample.own_copy_ms:
            # Too short to have written what is handed over: who computes in place of copying would be done in no time.
            copying_ms = min(copying_ms, calling_ms + HAND_OVER_MS * sample.length)
        return max(sample.late_ms - COPY_SLACK_RATIO * copying_ms, 0.0)

    def held_up_ms(self, sample: Sample) -> float:
        """How long writing the inputs was held up: so long something of the candidate ran on the device."""
        return max(sample.writing_ms - self._writing_ms(sample.length) - self.undetectable_ms(sample.length), 0.0)

    def undetectable_ms(self, length: float) -> float:
        """By how much writing the inputs of so many calls may vary, so that what holds it up no longer is not seen."""
        return WRITE_SLACK_SHARE * self._writing_ms(length) + WRITE_SLACK_MS if self.write_ms else 0.0

    def _writing_ms(self, length: float) -> float:
        return self.write_ms + self.write_more_ms * (length - 1)

    def outside_clock_ms(self, sample: Sample) -> float:
        """What was done before the clock started and after it stopped."""
        return self.held_up_ms(sample) + self.late_ms(sample)

    def launching_ms(self, sample: Sample) -> float:
        """What it took the host to launch one call, beyond what can be hidden."""
        return self._launching_ms(sample) - self.call_ms - HIDDEN_LAUNCH_MS

    def _launching_ms(self, sample: Sample) -> float:
        return (sample.launch_ms - self.launch_ms) / sample.length

    def typical_ms(self, samples: Sequence[Sample]) -> float:
        """What one call took of these, by the referee's clock."""
        return statistics.median(map(self.per_call_ms, samples))

    def per_call_ms(self, sample: Sample) -> float:
        """The referee's clock without the handshake. Never zero: a clock has a resolution."""
        return (self._calling_ms(sample) + self.outside_clock_ms(sample)) / sample.length

    def _calling_ms(self, sample: Sample) -> float:
        """What all its calls took until "done"."""
        handshake_ms = self.single_ms if sample.length == 1 else self.burst_ms + self.loaded_ms
        if sample.device_ms is None and sample.length == 1:
            handshake_ms = min(handshake_ms, MAX_HANDSHAKE_SHARE * sample.forward_ms)
        return max(sample.forward_ms - handshake_ms, MIN_CLOCK_MS)


def burst_length(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.length for sample in samples)
