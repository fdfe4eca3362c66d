"""One candidate before the referee: every call is of the same kind.

Fresh inputs are written to the arena, the outputs there are overwritten, the clock runs from there to "done", and the
outputs are read and compared. Huge ones take far longer to compare than to compute, so that of these only some timed
calls are; which ones is decided after the call. Warm-up calls repeat their inputs and are not compared; nothing is
decided by them.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from stark_worker.correctness.reference import Case, Reference
from stark_worker.device import cuda
from stark_worker.device.arena import HostMemory, Written, copy_into, nbytes, poison
from stark_worker.device.cuda_arena import DeviceMemory
from stark_worker.protocol.codec import ProtocolError, from_data
from stark_worker.protocol.errors import Failure, MachineryFault, Outcome, SandboxTooWeak, TaskFault
from stark_worker.protocol.isolation import Isolation
from stark_worker.protocol.report import Check, Labels, Timing
from stark_worker.protocol.request import EvalRequest, Score
from stark_worker.referee.calls import write_job
from stark_worker.referee.candidate import NOT_STARTED, START_S, Candidate
from stark_worker.referee.check import Description, OutputChecker
from stark_worker.referee.labels import kernels_of, number
from stark_worker.timing.device_clock import confirmed_device_times, median_device_ms, read_device_ms
from stark_worker.timing.overhead import Overhead
from stark_worker.timing.sample import Sample

MAX_WARM_UPS, WARM_UP_S, WARM_UP_DEVICE_S = 100, 1.0, 0.05
CALIBRATIONS, CALIBRATIONS_HUGE, CALIBRATIONS_FEW = 20, 9, 5
MIN_WARM_UPS = 3  # on a GPU, where it is found out whether a candidate waits for the device
LAUNCH_TIMEOUT_S = (
    0.02  # how long to wait until everything is launched; who waits for the device in between never gets there
)
MIN_BURST_GROWTH = 1.5  # how many times as many calls as before are worth another try
LARGE_CALL_BYTES = 2**28  # bytes of inputs and outputs, up to which cases are made while the candidate builds
PROFILE_S = 30.0
MAX_PEAK_BYTES = 2**50  # that a candidate's process could mean seriously
WEIGHTS = {"name": "copied by name", "seed": "by seed and order"}

Message = dict[str, Any]  # by the candidate's process
Calls = list[tuple[int, int]]  # places and seeds


class CallResult(NamedTuple):
    """What came of one request: its time, the outputs that were read, and what all results look like."""

    sample: Sample
    outputs: list[list[torch.Tensor]]
    looks: list[Description]


class Trial:
    """One candidate before the referee."""

    def __init__(
        self, request: EvalRequest, candidate: Candidate, reference: Reference, cache: str, is_opponent: bool = False
    ) -> None:
        self._is_opponent = is_opponent
        self.seeds = {"weights": reference.construct_seed}
        self.on_host, self.loaded = reference.device.type == "cpu", False
        self.checks: dict[str, str] = {} if self.on_host else {Check.ARITHMETIC: request.arithmetic}
        self.isolation: Isolation | None = None
        self.busy_warning: str | None = None
        self.as_kernelbench = request.score is Score.KERNELBENCH
        self.burst = 1  # how many calls make a sample at most
        self.reuses_output_memory = False  # whether that is one because it returns the same memory every time
        self._warm_ups = 0
        self.gated = not self.on_host  # calls are launched before their inputs are there
        self.compared = 0  # timed calls
        self.candidate = candidate
        self._request, self._reference = request, reference
        self._job = job = write_job(request, reference, candidate.folder, cache)
        self._checker = OutputChecker(job, reference)
        self._time_left_s = request.limits.run_s
        self._last_place = 0  # the place that was written last
        self._host_copies: dict[int, list[torch.Tensor]] = {}
        self._memory: HostMemory | DeviceMemory
        if self.on_host:
            self._memory = HostMemory(candidate.arena, job.size)
        else:
            self._memory = DeviceMemory(job.size, request.flushes_cache)
        arena = self._memory.arena
        self._inputs = [arena.views(spots) for spots in job.inputs]
        self._outputs = [arena.views(spots) for spots in job.outputs]
        for spot, tensor in zip(job.construct_tensors, reference.construct_tensors, strict=True):
            arena.view(spot).copy_(tensor)
        for name, weight in reference.weights.items():
            arena.view(job.weights[name]).copy_(weight)

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        """The memory is given back when nobody has it open any more, also not who is judged."""
        self.candidate.close()
        self._inputs, self._outputs, self._host_copies = [], [], {}
        self._memory.close()

    def check(self) -> None:
        """Have the candidate loaded and its results compared, without timing it."""
        self._overhead = self._calibrate()
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
        """Everything before the timed calls; a candidate that fails raises ``Failure``."""
        self.check()
        wanted = self._overhead.burst_length(self._warm_up(), len(self._inputs))
        self.burst = self._longest_burst(wanted)
        self.recalibrate()
        self.compared = 0

    def recalibrate(self) -> None:
        """Learn anew what a burst costs by itself, which depends on who else is on the device."""
        if self.burst > 1 and not self.on_host:
            self._overhead = self._overhead.with_candidate(self._empty([]))

    def cap_overhead_at(self, opponent: Trial) -> None:
        """Have no more taken off a burst than an opponent has: what a burst costs by itself, its own process tells."""
        self._overhead = self._overhead.cap_loaded_at(opponent._overhead)

    def restart_clock(self) -> None:
        """The same when others have come or gone, with all the time there was."""
        self._time_left_s = self._request.limits.run_s
        self.recalibrate()

    def labels(self, told: Message | None) -> Labels:
        """What kind of kernel it is, with what its own process told when it was profiled."""
        own_bytes = (
            number((told or {}).get("peak_bytes"), MAX_PEAK_BYTES) if self._extra_bytes is None else self._extra_bytes
        )
        given = sum(map(nbytes, (*self._reference.model.state_dict().values(), *self._reference.outputs)))
        source, gpu = self._request.candidate_source, not self.on_host
        kernels, share = (None, None) if told is None else kernels_of(told, source, gpu)
        return Labels(
            first_call_ms=round(self._first_call_ms, 3),
            precision=self._checker.precision,
            extra_memory_mb=None if own_bytes is None else round(max(own_bytes - given, 0) / 2**20, 1),
            kernels=kernels,
            own_share=share,
        )

    def profile(self) -> Message | None:
        """Where its time goes, as its own process says; the last thing it is asked. None when it cannot say."""
        try:
            self.candidate.tell(do="profile")
            return self.candidate.expect("profiled", PROFILE_S)
        except Failure:
            return None

    def _calibrate(self) -> Overhead:
        """What a request costs when there is no candidate yet: nothing is the candidate's fault here."""
        try:
            self.candidate.tell(do="prepare", files=self._memory.files)
            ready = self.candidate.expect("ready", START_S)
            if "refused" in ready:
                raise SandboxTooWeak(str(ready["refused"]))
            self.isolation = from_data(Isolation, ready.get("isolation"))
            singles = self._empty([(0, 0)])
            bursts = self._empty([]) if len(self._inputs) > 1 else []
            overhead = Overhead.of(singles, bursts, self._without_gate(), self._handing_over_all())
            overhead = overhead.with_writes(self._write_all(), len(self._inputs))
        except (Failure, ProtocolError) as failure:
            raise MachineryFault(f"{NOT_STARTED} {failure}") from failure
        self.checks[Check.HANDSHAKE] = f"{overhead.single_ms:.3f}"
        return overhead

    def _write_all(self) -> list[float]:
        """What it takes the device to write all places, some times over."""
        if self.on_host or len(self._inputs) == 1:
            return [0.0]
        inputs = dict(enumerate(self._reference.timed_inputs(len(self._inputs))))
        return [self._written(inputs).took_ms for _ in range(CALIBRATIONS_FEW + 1)][1:]

    def _handing_over_all(self) -> list[Sample]:
        """What it takes on the host to hand over the results of calls in a row, about which there is one message."""
        places = range(len(self._inputs))
        return self._empty([(place, 0) for place in places]) if self.on_host and len(places) > 1 else []

    def _without_gate(self) -> list[Sample]:
        if self.on_host:
            return []
        self.gated = False
        samples = self._empty([(0, 0)])
        self.gated = True
        return samples

    def _empty(self, calls: Calls) -> list[Sample]:
        """Requests that compute nothing, after the same preparations as one that does: on inputs never used again.

        On the CPU, where a task can take long and preparations matter little, without them.
        """
        reference = self._reference
        inputs = {} if self.on_host else {0: reference.timed_inputs(1)[0]}
        if self.on_host:
            count = CALIBRATIONS_FEW if reference.call_bytes >= LARGE_CALL_BYTES else CALIBRATIONS
        else:
            count = CALIBRATIONS_HUGE if reference.huge else CALIBRATIONS
        return [self._call(calls, inputs).sample for _ in range(count + 1)][1:]  # the first one touches new memory

    def _build(self) -> Iterable[Case]:
        """Have the candidate loaded and make cases meanwhile."""
        self.candidate.forget_output()  # so far it was not the candidate that printed
        self.candidate.tell(do="load")
        cases: Iterable[Case] = self._reference.cases()
        if self._reference.call_bytes < LARGE_CALL_BYTES:
            cases = list(cases)
        loaded = self.candidate.expect("loaded", self._request.limits.build_s)
        self.candidate.pause()
        self.loaded = True
        weights = WEIGHTS.get(str(loaded.get("weights")), WEIGHTS["seed"])
        self.checks[Check.WEIGHTS] = weights
        self._checker.weights_by_seed = weights == WEIGHTS["seed"]
        return cases

    def end(self) -> None:
        """Leave nothing of the candidate, neither on the host nor on a device."""
        self.candidate.close()

    def _warm_up(self) -> list[Sample]:
        """Nobody who waits for the device in forward() is kept waiting after that."""
        samples = self._repeat()
        if self.gated and all(sample.launch_ms >= LAUNCH_TIMEOUT_S * 1e3 for sample in samples):
            self.gated, self._overhead = False, self._overhead.without_gate()
            samples = self._repeat()
        return samples

    def _repeat(self) -> list[Sample]:
        """The second half of some calls on the same inputs."""
        until = time.monotonic() + (WARM_UP_S if self.on_host else WARM_UP_DEVICE_S)
        samples: list[Sample] = []
        least = 1 if self.on_host else MIN_WARM_UPS
        while len(samples) < least or (len(samples) < MAX_WARM_UPS and time.monotonic() < until):
            samples.append(self._call([(self._last_place, len(samples))], {}).sample)
        self._warm_ups = len(samples)
        return samples[len(samples) // 2 :]

    def _longest_burst(self, wanted: int) -> int:
        """How many calls to make in a row, by what single ones let one expect: more where they take less in a row.

        One where results do not outlast later calls: a candidate may return the same memory every time. And fewer where
        a device does not take so many launches while it waits.
        """
        good, most = 1, len(self._inputs)
        while wanted > good:
            try:
                for _ in range(1 if self.on_host else 2):  # the first also has to get memory, which can take long
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
        """What one call took of these, by the referee's clock."""
        return self._overhead.typical_ms(samples)

    def confirms(self, samples: list[Sample]) -> bool:
        """Whether the referee's clock can confirm what a device's tells of these."""
        return self._overhead.confirms(samples)

    def timing(self, samples: list[Sample], confirmed: bool, equal_bursts: bool = True) -> Timing:
        """The samples that count, and how they came about; of a device's clock only what can be confirmed.

        ``equal_bursts`` are bursts that are as long as those of whom it is compared with.
        """
        overhead = self._overhead
        calls = sum(sample.length for sample in samples)
        compared = "some, which nobody can foresee," if self._reference.huge else "each"
        self.checks[Check.TIMING] = (
            f"{calls} calls after {self._warm_ups} to warm up, each on inputs not seen before and {compared} compared"
        )
        if self.burst > 1:
            self.checks[Check.TIMING] += f", in {len(samples)} bursts"
        outside = tuple(map(overhead.per_call_ms, samples))
        return Timing(outside) if self.on_host else self._device_timing(samples, outside, confirmed, equal_bursts)

    def _device_timing(
        self, samples: list[Sample], outside: tuple[float, ...], confirmed: bool, equal_bursts: bool
    ) -> Timing:
        """What counts of both clocks of a GPU."""
        launching = tuple(map(self._overhead.launching_ms, samples))
        launched = f"launching {max(statistics.median(launching), 0.0):.4f} ms more than can be hidden"
        self.checks[Check.CLOCKS] = (
            f"device {median_device_ms(samples):.4f} ms, referee {statistics.median(outside):.4f} ms,"
            f" {launched if self.gated else 'launching included'}, per call"
        )
        written_ms = statistics.median(sample.writing_ms for sample in samples)
        held_up_ms = statistics.median(map(self._overhead.held_up_ms, samples))
        self.checks[Check.INPUTS] = (
            f"written in {written_ms:.3f} ms while it was stopped, {held_up_ms:.3f} ms of them its own"
        )
        self.checks[Check.CACHE] = cuda.describe_cache(self._request.flushes_cache, self.burst, self._job.size)
        told = confirmed_device_times(samples, self._overhead) if confirmed else None
        at_most = (max(sample.device_ms or 0.0, self._overhead.upper_bound_ms(sample)) for sample in samples)
        times = (told or outside) if confirmed else tuple(at_most)
        times = tuple(map(max, times, launching))
        if (took_ms := statistics.median(times)) < (floor_ms := cuda.floor_ms(self._checker.written_bytes)):
            log = f"It took {took_ms:.4f} ms, and to write its outputs alone takes this device {floor_ms:.4f} ms."
            raise Failure(Outcome.REJECTED, log, "impossible_time")
        return Timing(times, 0.0 if told else self._overhead.unsure_ms(samples, equal_bursts))

    def call_checked(self, cases: Sequence[Case], again: bool = False, share: float = 1.0) -> Sample:
        """Calls in a row, one on each case, with all outputs compared, or of cases without an answer a share.

        The places are not to be foreseen, but for a single call ``again`` where the last one was: on other inputs.
        """
        places = [self._last_place] if again else random.SystemRandom().sample(range(len(self._inputs)), len(cases))
        inputs = dict(zip(places, cases, strict=True))
        called = self._call([(place, case.seed) for place, case in inputs.items()], inputs, inputs)
        for look in called.looks or [{}]:
            self._checker.check_description(look)
        chance = random.SystemRandom()
        for (place, case), outputs in zip(inputs.items(), called.outputs, strict=True):
            if case.expected or chance.random() < share:
                self._compare(place, case, outputs)
        return called.sample

    def _compare(self, place: int, case: Case, outputs: list[torch.Tensor]) -> None:
        """Compare a call; one without an answer is answered now, and left alone where the reference has none."""
        answered = case if case.expected else self._reference.answer(case)
        if answered is not None:
            self._checker.compare(answered, outputs)
            self._checker.compare_inputs(answered, self._inputs[place])
            self.compared += 1

    def _read(self, places: Collection[int]) -> tuple[list[list[torch.Tensor]], float]:
        """The outputs at some places, and how long it took to copy them."""
        begin = time.perf_counter()
        outputs = [self._received(place) for place in places]
        self._memory.wait()
        return outputs, (time.perf_counter() - begin) * 1e3

    def _received(self, place: int) -> list[torch.Tensor]:
        """The outputs at a place, in memory of our own. On the host it is kept, so that a copy is nothing but one."""
        if not self.on_host:
            return [output.clone() for output in self._outputs[place]]
        if place not in self._host_copies:
            self._host_copies[place] = [output.clone() for output in self._outputs[place]]
        for mine, output in zip(self._host_copies[place], self._outputs[place], strict=True):
            copy_into(mine, output)
        return self._host_copies[place]

    def _write(self, place: int, case: Case) -> None:
        inputs = self._inputs[place]
        if [(t.shape, t.dtype) for t in case.inputs] != [(view.shape, view.dtype) for view in inputs]:
            raise TaskFault("get_inputs() returns other shapes or types from call to call; they have to stay the same.")
        for view, tensor in zip(inputs, case.inputs, strict=True):
            self._memory.write(view, tensor)
        for view in self._outputs[place]:
            poison(view)
        self._last_place = place

    def _written(self, inputs: Mapping[int, Case]) -> Written:
        def write() -> None:
            for place, case in inputs.items():
                self._write(place, case)

        return self._memory.begin(write)

    def _call(self, calls: Calls, inputs: Mapping[int, Case], read: Collection[int] = ()) -> CallResult:
        """One request, its time taken from what the candidate has left; ``inputs`` are written to their places, and the
        outputs at those to ``read`` are read as soon as they are handed over.

        At a gate it launches its work before they are there, which waits for them. Otherwise they are there first. It
        is stopped while they are written, while outputs are read, and between calls.
        """
        asked, launch_ms = time.perf_counter(), 0.0
        until = asked + self._time_left_s
        if self.gated:
            self.candidate.tell(do="call", calls=calls, gate=self._memory.opened + 1)
            launched = self.candidate.says_soon("launched", LAUNCH_TIMEOUT_S)
            launch_ms = (time.perf_counter() - asked) * 1e3
            self.candidate.pause()
            begin, writing_ms = self._written(inputs)
            self.candidate.go_on()
        else:
            begin, writing_ms = self._written(inputs)
            self.candidate.tell(do="call", calls=calls, gate=self._memory.opened)
            launched = self.on_host
        if not launched:
            self.candidate.expect("launched", until - time.perf_counter())
        self.candidate.expect("done", until - time.perf_counter())
        done = time.perf_counter()
        looked = self.candidate.expect("copied" if self.on_host else "looked", until - done)
        end = time.perf_counter()
        self._time_left_s -= end - asked
        self.candidate.pause()
        outputs, own_copy_ms = self._read(read) if read else ([], 0.0)
        if self.on_host:
            looked = self._looked()
        looks, device_ms, changed = looked.get("looks"), looked.get("device_ms"), looked.get("changed")
        if not isinstance(looks, list) or not all(isinstance(look, dict) for look in looks):
            raise Failure(Outcome.REJECTED, "What the results look like was not told.", "forged_message")
        if changed:
            self.checks[Check.PRECISION] = f"the candidate changed {str(changed)[:200]}; reset before every call"
        sample = Sample(
            forward_ms=(done - begin) * 1e3,
            late_ms=(end - done) * 1e3,
            own_copy_ms=own_copy_ms,
            device_ms=None if self.on_host else read_device_ms(device_ms, len(calls)),
            length=len(calls),
            launch_ms=launch_ms,
            writing_ms=0.0
            if self._is_opponent and self.loaded
            else writing_ms,  # an opponent gains nothing by being held up
        )
        return CallResult(sample, outputs, looks)

    def _looked(self) -> Message:
        """What it tells when its results were read already."""
        begin = time.perf_counter()
        self.candidate.go_on()
        looked = self.candidate.expect("looked", self._time_left_s)
        self._time_left_s -= time.perf_counter() - begin
        self.candidate.pause()
        return looked
