"""The trial of one candidate: checks its outputs and times its calls.

Every call gets new inputs in the arena and poisoned outputs. The clock runs from there to "done"; then the outputs are
read and compared. Comparing huge outputs takes far longer than computing them, so only some timed calls are compared.
Which ones is drawn after the call. Warm-up calls repeat their inputs and are not compared; nothing depends on them.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence

import torch

from stark_worker.correctness.reference import Case, Reference
from stark_worker.correctness.weights import WeightSource
from stark_worker.device import cuda
from stark_worker.device.arena import nbytes
from stark_worker.protocol.errors import Failure, Outcome
from stark_worker.protocol.isolation import Isolation
from stark_worker.protocol.report import Check, Labels, Timing
from stark_worker.protocol.request import EvalRequest, Score
from stark_worker.referee.calibration import LARGE_CALL_BYTES, calibrate, empty_requests, repeat_last_call
from stark_worker.referee.calls import LAUNCH_TIMEOUT_S, Caller, Message
from stark_worker.referee.candidate import Candidate
from stark_worker.referee.check import OutputChecker
from stark_worker.referee.labels import kernels_of, read_number
from stark_worker.timing.device_clock import confirmed_device_times, median_device_ms
from stark_worker.timing.sample import Sample

MIN_BURST_GROWTH = 1.5  # a burst that is longer by less than this factor is not tried
PROFILE_S = 30.0
MAX_PEAK_BYTES = 2**50  # a larger number from the candidate's process is nonsense
WEIGHTS = {WeightSource.NAME: "copied by name", WeightSource.SEED: "by seed and order"}


class Trial:
    """Checks and times one candidate."""

    def __init__(
        self, request: EvalRequest, candidate: Candidate, reference: Reference, cache: str, is_opponent: bool = False
    ) -> None:
        self._is_opponent = is_opponent
        self.seeds = {"weights": reference.construct_seed}
        self.on_host, self.is_loaded = reference.device.type == "cpu", False
        self.checks: dict[str, str] = {} if self.on_host else {Check.ARITHMETIC: request.arithmetic}
        self.isolation: Isolation | None = None
        self.busy_warning: str | None = None
        self.is_kernelbench = request.score is Score.KERNELBENCH
        self.burst = 1  # the greatest number of calls of a sample
        self.reuses_output_memory = False  # returns the same memory every time, so bursts are not possible
        self._warm_ups = 0
        self.compared = 0  # timed calls
        self.candidate = candidate
        self._request, self._reference = request, reference
        self._caller = Caller(request, candidate, reference, cache, self.checks)
        self._checker = OutputChecker(self._caller.job, reference)

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self._caller.close()

    @property
    def is_gated(self) -> bool:
        """True if calls are launched before their inputs are written."""
        return self._caller.is_gated

    def check(self) -> None:
        """Load the candidate and compare its results, without timing it."""
        self.isolation, self._overhead = calibrate(self._caller, self._reference)
        self.checks[Check.HANDSHAKE] = f"{self._overhead.single_ms:.3f}"
        footprint = self.candidate.footprint() if self.on_host else None
        samples: list[Sample] = []
        for case in self._build():
            samples.append(self.call_checked([case], again=len(samples) % 2 == 1))
            self.seeds[f"{len(samples)} {case.name}"] = case.input_seed
            self.seeds[f"{len(samples)} the call"] = case.seed
            del case  # before the next one is drawn
        self._first_call_ms = samples[0].launch_ms + samples[0].forward_ms
        self._extra_bytes = footprint.extra_bytes() if footprint else None
        exact = "double precision" if self._reference.exact else "the task's own precision"
        self.checks[Check.CORRECTNESS] = f"{len(samples)} input sets against a reference in {exact}"

    def prepare(self) -> None:
        """Do everything before the timed calls; raise ``Failure`` if the candidate fails."""
        self.check()
        wanted = self._overhead.burst_length(self._warm_up(), self._caller.places)
        self.burst = self._longest_burst(wanted)
        self.recalibrate()
        self.compared = 0

    def recalibrate(self) -> None:
        """Measure the overhead of a burst again: it depends on the other processes on the device."""
        if self.burst > 1 and not self.on_host:
            self._overhead = self._overhead.with_candidate(empty_requests(self._caller, self._reference, []))

    def cap_overhead_at(self, opponent: Trial) -> None:
        """Take no more overhead off a burst than off the opponent's: the candidate's process can lengthen its own."""
        self._overhead = self._overhead.cap_loaded_at(opponent._overhead)

    def restart_clock(self) -> None:
        """Reset the time left and recalibrate, after another process came or went."""
        self._caller.time_left_s = self._request.limits.run_s
        self.recalibrate()

    def labels(self, profile: Message | None) -> Labels:
        """Return the labels of the kernel; ``profile`` is its own process's answer."""
        own_bytes: float | None = self._extra_bytes
        if own_bytes is None:
            own_bytes = read_number((profile or {}).get("peak_bytes"), MAX_PEAK_BYTES)
        given = sum(map(nbytes, (*self._reference.model.state_dict().values(), *self._reference.outputs)))
        source, gpu = self._request.candidate_source, not self.on_host
        kernels, share = (None, None) if profile is None else kernels_of(profile, source, gpu)
        return Labels(
            first_call_ms=round(self._first_call_ms, 3),
            precision=self._checker.precision,
            extra_memory_mb=None if own_bytes is None else round(max(own_bytes - given, 0) / 2**20, 1),
            kernels=kernels,
            own_share=share,
        )

    def profile(self) -> Message | None:
        """Let the candidate's process profile itself, as its last request; None if that fails."""
        try:
            self.candidate.send(do="profile")
            return self.candidate.expect("profiled", PROFILE_S)
        except Failure:
            return None

    def _build(self) -> Iterable[Case]:
        """Let the process load the candidate, and draw cases in the meantime."""
        self.candidate.clear_output()  # printed before the candidate was loaded
        self.candidate.send(do="load")
        cases: Iterable[Case] = self._reference.cases()
        if self._reference.call_bytes < LARGE_CALL_BYTES:
            cases = list(cases)
        loaded = self.candidate.expect("loaded", self._request.limits.build_s)
        self.candidate.pause()
        self.is_loaded = True
        self._caller.counts_write_delay = not self._is_opponent  # an opponent gains nothing if it is held up
        source = WeightSource.NAME if loaded.get("weights") == WeightSource.NAME else WeightSource.SEED
        self.checks[Check.WEIGHTS] = WEIGHTS[source]
        self._checker.weights_by_seed = source is WeightSource.SEED
        return cases

    def end(self) -> None:
        """End the candidate's processes, on the host and on the device."""
        self.candidate.close()

    def _warm_up(self) -> list[Sample]:
        """Warm up. If the candidate waits for the device in forward(), write its inputs first from now on."""
        samples = self._repeat()
        if self.is_gated and all(sample.launch_ms >= LAUNCH_TIMEOUT_S * 1e3 for sample in samples):
            self._caller.is_gated, self._overhead = False, self._overhead.without_gate()
            samples = self._repeat()
        return samples

    def _repeat(self) -> list[Sample]:
        """Return the second half of some calls on the same inputs."""
        samples = repeat_last_call(self._caller)
        self._warm_ups = len(samples)
        return samples[len(samples) // 2 :]

    def _longest_burst(self, wanted: int) -> int:
        """Find the burst length: start from the estimate of single calls, and try more if calls are faster in bursts.

        It is 1 if later calls overwrite results: a candidate may return the same memory every time. It is shorter if
        the device does not queue so many launches.
        """
        good, most = 1, self._caller.places
        while wanted > good:
            try:
                for _ in range(1 if self.on_host else 2):  # the first may also allocate memory
                    sample = self.call_checked(self._reference.own_cases(wanted))
            except Failure as failure:
                if failure.outcome is not Outcome.WRONG_RESULT:
                    raise
                self.reuses_output_memory = True
                return good
            if sample.launch_ms < LAUNCH_TIMEOUT_S * 1e3:
                good = wanted
                longer = self._overhead.burst_length([sample], most)
                wanted = longer if longer >= MIN_BURST_GROWTH * good else good
            else:
                wanted = most = wanted // 2
        return good

    def typical_ms(self, samples: list[Sample]) -> float:
        """Return the median time of one call by the referee's clock."""
        return self._overhead.typical_ms(samples)

    def confirms(self, samples: list[Sample]) -> bool:
        """True if the referee's clock can confirm the device's for these samples."""
        return self._overhead.confirms(samples)

    def timing(self, samples: list[Sample], confirmed: bool, equal_bursts: bool = True) -> Timing:
        """Return the times that count, and record their origin. ``confirmed`` lets the device's clock count.

        ``equal_bursts`` is True if the opponent's bursts have the same length.
        """
        overhead = self._overhead
        calls = sum(sample.length for sample in samples)
        compared = "a random part of them" if self._reference.is_huge else "all"
        self.checks[Check.TIMING] = (
            f"{calls} calls on new inputs after {self._warm_ups} to warm up, {compared} compared"
        )
        if self.burst > 1:
            self.checks[Check.TIMING] += f", in {len(samples)} bursts"
        outside = tuple(map(overhead.per_call_ms, samples))
        return Timing(outside) if self.on_host else self._device_timing(samples, outside, confirmed, equal_bursts)

    def _device_timing(
        self, samples: list[Sample], outside: tuple[float, ...], confirmed: bool, equal_bursts: bool
    ) -> Timing:
        """Return the times that count of both clocks of a GPU."""
        launching = tuple(map(self._overhead.launching_ms, samples))
        launched = f"launching {max(statistics.median(launching), 0.0):.4f} ms more than can be hidden"
        self.checks[Check.CLOCKS] = (
            f"device {median_device_ms(samples):.4f} ms, referee {statistics.median(outside):.4f} ms,"
            f" {launched if self.is_gated else 'launching included'}, per call"
        )
        written_ms = statistics.median(sample.writing_ms for sample in samples)
        held_up_ms = statistics.median(map(self._overhead.held_up_ms, samples))
        self.checks[Check.INPUTS] = (
            f"written in {written_ms:.3f} ms while the candidate was stopped; its work held that up {held_up_ms:.3f} ms"
        )
        self.checks[Check.CACHE] = cuda.describe_cache(self._request.flushes_cache, self.burst, self._caller.job.size)
        device = confirmed_device_times(samples, self._overhead) if confirmed else None
        at_most = (max(sample.device_ms or 0.0, self._overhead.upper_bound_ms(sample)) for sample in samples)
        times = (device or outside) if confirmed else tuple(at_most)
        times = tuple(map(max, times, launching))
        if (took_ms := statistics.median(times)) < (floor_ms := cuda.floor_ms(self._checker.written_bytes)):
            log = f"It took {took_ms:.4f} ms; this device needs {floor_ms:.4f} ms only to write its outputs."
            raise Failure(Outcome.REJECTED, log, "impossible_time")
        return Timing(times, 0.0 if device else self._overhead.unsure_ms(samples, equal_bursts))

    def call_checked(self, cases: Sequence[Case], again: bool = False, share: float = 1.0) -> Sample:
        """Call the candidate once on each case and compare its outputs; of unanswered cases only a ``share``.

        Places are random, except that a single call ``again`` uses the last place, with other inputs.
        """
        caller = self._caller
        places = [caller.last_place] if again else random.SystemRandom().sample(range(caller.places), len(cases))
        inputs = dict(zip(places, cases, strict=True))
        called = caller.call([(place, case.seed) for place, case in inputs.items()], inputs, inputs)
        for description in called.descriptions or [{}]:
            self._checker.check_description(description)
        chance = random.SystemRandom()
        for (place, case), outputs in zip(inputs.items(), called.outputs, strict=True):
            if case.expected or chance.random() < share:
                self._compare(place, case, outputs)
        return called.sample

    def _compare(self, place: int, case: Case, outputs: list[torch.Tensor]) -> None:
        """Compare a call. Answer an unanswered case first; skip it if the reference has no answer."""
        answered = case if case.expected else self._reference.answer(case)
        if answered is not None:
            self._checker.compare(answered, outputs)
            self._checker.compare_inputs(answered, self._caller.inputs[place])
            self.compared += 1
