"""The trial of one candidate: checks its outputs and times its calls.

Every call gets inputs that no call had before, and its outputs are compared. Nothing about a call reveals its purpose:
checks, warm-ups and timed calls are the same to the candidate. Comparing huge outputs takes far longer than computing
them, so only some calls are compared there. Which ones is drawn after the call.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from stark_worker.correctness.reference import Case, Reference
from stark_worker.correctness.state import changes_state
from stark_worker.correctness.traffic import certain_bytes
from stark_worker.correctness.weights import WeightSource
from stark_worker.device import cuda
from stark_worker.device.arena import dtype_name, nbytes
from stark_worker.protocol.codec import ProtocolError, from_data
from stark_worker.protocol.errors import Failure, MachineryFault, Outcome, SandboxTooWeak, TaskFault
from stark_worker.protocol.interface import Interface
from stark_worker.protocol.isolation import Isolation
from stark_worker.protocol.report import Check, Labels, Phase, Timing
from stark_worker.protocol.request import EvalRequest, Score
from stark_worker.referee.calls import Caller, CallResult, Message, NotGated
from stark_worker.referee.candidate import NOT_STARTED, START_S, Candidate
from stark_worker.referee.check import OutputChecker
from stark_worker.referee.hangs import await_answer, load_limit_s, weight_bytes
from stark_worker.referee.labels import kernels_of, read_number
from stark_worker.referee.selection import Selection
from stark_worker.timing.measurement import Calibration, CallTimes, Measurement, describe_times, timing_of
from stark_worker.timing.phase_clock import PhaseClock

PROFILE_S = 30.0
MAX_PEAK_BYTES = 2**50  # a larger number from the candidate's process is nonsense
WEIGHTS = {WeightSource.NAME: "copied by name", WeightSource.SEED: "by seed and order"}
EMPTY_CALLS, EMPTY_GATED_CALLS, MOVING_CALLS = 10, 100, 50
LARGE_CALL_BYTES = 2**28  # of inputs and outputs; from here on cases are drawn one by one
MAX_WARM_UPS, WARM_UP_S, WARM_UP_DEVICE_S = 100, 1.0, 0.05
GATE_TRIES = 3  # the first may still load a kernel
NO_KERNEL = "its work does not make the device change to its process, as copies from the host do not"
KEPT_DEVICE = "something of it keeps the device while its call has to wait, as two streams that wait do"
RANDOM_TASK = "the task draws random numbers, and a seed must not be known before the inputs"


class Trial:
    """Checks and times one candidate."""

    def __init__(
        self, request: EvalRequest, candidate: Candidate, reference: Reference, cache: str, clock: PhaseClock
    ) -> None:
        self.seeds = {"weights": reference.construct_seed}
        self.on_host = reference.device.type == "cpu"
        self.has_source = self.is_loaded = False  # the candidate's source may have run, and is built
        self.checks: dict[str, str] = {} if self.on_host else {Check.ARITHMETIC: request.arithmetic}
        self.isolation: Isolation | None = None
        self.busy_warning: str | None = None
        self.is_kernelbench = request.score is Score.KERNELBENCH
        self.is_brief, self.best_ms = request.is_brief, request.best_ms
        self.is_gated = False  # calls are queued before their inputs are written
        self.why_awake: str | None = None  # on a GPU
        self.times: list[CallTimes] = []  # of timed calls
        self.drift_ms = 0.0  # of empty calls in turns with them, in an opponent's process
        self._rechecked: list[CallTimes] = []
        self.disturbed = 0  # timed calls that do not count
        self._warm_ups, self._first_call_ms, self._typical_s = 0, 0.0, 0.0
        self.candidate, self.clock = candidate, clock
        self._request, self._reference = request, reference
        self._caller = Caller(request, candidate, reference, cache)
        self._checker = OutputChecker(self._caller.job, reference)
        self._selection = Selection()
        self._empty = self._empty_gated = Calibration(())  # until calls without a candidate are made

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self._caller.close()

    def check(self, timed: bool = False) -> None:
        """Load the candidate and compare its results. ``timed`` measures empty calls first, as timing needs them."""
        self._calibrate(timed)
        footprint = self.candidate.footprint() if self.on_host else None
        count = 0
        self.clock.begin(Phase.LOAD)
        cases = self._build()
        self.clock.begin(Phase.CHECK)
        for case in cases:
            times = self._compared(self._caller.call_awake(case), case)
            self._first_call_ms = self._first_call_ms or times.total_ms
            self._typical_s, count = times.total_ms / 1e3, count + 1
            self.seeds[f"{count} {case.name}"] = case.input_seed
            self.seeds[f"{count} the call"] = case.seed
            del case  # before the next one is drawn
        self._extra_bytes = footprint.extra_bytes() if footprint else None
        exact = "double precision" if self._reference.exact else "the task's own precision"
        self.checks[Check.CORRECTNESS] = f"{count} input sets against a reference in {exact}"
        if failing := self._reference.left_out:
            why = "; ".join(f"{kind}: {reason}" for kind, reason in sorted(failing.items()))
            self.checks[Check.CORRECTNESS] += f". Left out, because the reference fails there: {why}"

    def prepare(self) -> None:
        """Do everything before the timed calls; raise ``Failure`` if the candidate fails."""
        self.check(timed=True)
        self.clock.begin(Phase.TIME)
        self._warm_up()
        if not self.on_host:
            self._try_gate()

    def restart_clock(self) -> None:
        """Reset the time left, after the other side of a comparison was prepared."""
        self._caller.time_left_s = self._request.limits.run_s

    def time_call(self, case: Case) -> CallTimes | None:
        """Call the candidate and compare its outputs; None if the call was disturbed and must be repeated."""
        try:
            called = self._caller.call_gated(case, self._typical_s) if self.is_gated else self._caller.call_awake(case)
        except NotGated:
            return None
        times = self._compared(called, case)
        return None if not self.on_host and self._empty_gated.is_disturbed(times) else times

    def restart(self) -> None:
        """Forget the timed calls, to time again under other circumstances."""
        self.times, self.disturbed = [], 0
        self.restart_clock()

    def recheck(self, case: Case) -> float:
        """Make an empty call in this process of an opponent. Return how far such calls differ from those before."""
        try:
            self._rechecked.append(self._caller.call_gated(case, do="empty").times)
        except NotGated as error:
            raise MachineryFault(f"An empty call in turns with the candidate failed: {error}") from error
        return self._empty_gated.drift_ms(self._rechecked)

    def certain_ms(self) -> list[float]:
        """Return what the timed calls took at least: their times less that of an empty call."""
        empty_ms = (self._empty_gated if self.is_gated else self._empty).median.done_ms
        return [max(call.done_ms - empty_ms, 0.0) for call in self.times]

    def timing(self) -> Timing:
        """Return the times that count, and record their origin."""
        measured = Measurement(
            self.is_gated,
            self._empty_gated if self.is_gated else self._empty,
            tuple(self.times),
            self.disturbed,
            self.drift_ms,
        )
        timing = timing_of(measured)
        compared = "some of them, drawn afterwards," if self._reference.is_huge else "all"
        awake = f"; awake, because {self.why_awake}" if self.why_awake else ""
        self.checks[Check.TIMING] = (
            f"{len(self.times)} calls on new inputs after {self._warm_ups} to warm up, {compared} compared{awake}"
        )
        self.checks[Check.CLOCKS] = describe_times(measured)
        if not self.on_host:
            self.checks[Check.CACHE] = cuda.describe_cache(self._request.flushes_cache)
            self._check_floor(timing.median_ms + timing.unsure_ms)
        return timing

    def _check_floor(self, at_most_ms: float) -> None:
        """Refuse a time in which this device cannot move the certain bytes; flag one that is too short for the rest."""
        traffic, flushed = certain_bytes(self._reference), self._request.flushes_cache
        if at_most_ms < (floor_ms := cuda.floor_ms(traffic.written, traffic.read, flushed)):
            log = (
                f"It took {at_most_ms:.4f} ms; this device needs {floor_ms:.4f} ms only to move its inputs and outputs."
            )
            raise Failure(Outcome.REJECTED, log, "impossible_time")
        if at_most_ms < (rest_ms := cuda.floor_ms(traffic.written, traffic.read + traffic.others, flushed)):
            self.checks[Check.FLOOR] = f"moving all inputs, weights and outputs would take {rest_ms:.4f} ms"

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

    def interface(self) -> Interface:
        """Return the interface for which it was judged. Find out last if it follows other weights: it may fail."""
        reference = self._reference
        return Interface(
            shapes=tuple(tuple(tensor.shape) for tensor in reference.first.inputs),
            dtypes=tuple(map(dtype_name, reference.first.inputs)),
            construct=reference.construct,
            arguments=reference.arguments,
            result=reference.structure,
            takes_weights=not self._checker.weights_by_seed,
            follows_weights=self._follows_weights(),
            is_random=reference.is_random,
            changes_state=changes_state(reference),
        )

    def _follows_weights(self) -> bool | None:
        """True if it computes with other weights after its calls; None if it has none, or makes them itself."""
        if self._checker.weights_by_seed or not self._reference.weights:
            return None
        try:
            other = self._reference.with_other_weights()
            self._caller.write_weights(other.weights)
            self.candidate.send(do="weights")
            self.candidate.expect("weights", self._caller.time_left_s)
            self.candidate.pause()
            self._checker.compare(other.first, self._caller.call_awake(other.first).outputs)
        except Failure:
            return False
        except (TaskFault, torch.cuda.OutOfMemoryError):  # not its fault
            return None
        return True

    def profile(self) -> Message | None:
        """Let the candidate's process profile itself; None if that fails."""
        try:
            self.candidate.send(do="profile")
            return self.candidate.expect("profiled", PROFILE_S)
        except Failure:
            return None

    def end(self) -> None:
        """End the candidate's processes, on the host and on the device."""
        self.candidate.close()

    def _calibrate(self, timed: bool) -> None:
        """Open the arena in the candidate's process and measure empty calls. A failure here is the machine's."""
        self.clock.begin(Phase.START)
        try:
            self.candidate.send(do="prepare", files=self._caller.files)
            ready = self.candidate.expect("ready", START_S)
            if "refused" in ready:
                raise SandboxTooWeak(str(ready["refused"]))
            self.isolation = from_data(Isolation, ready.get("isolation"))
            if timed:
                self._measure_empty_calls()
        except (Failure, ProtocolError, NotGated) as failure:
            raise MachineryFault(f"{NOT_STARTED} {failure}") from failure

    def _measure_empty_calls(self) -> None:
        """Make calls with the same preparations as real ones. The first one touches new memory and is left out."""
        is_large = self._reference.call_bytes >= LARGE_CALL_BYTES
        awake = [self._caller.call_awake(self._reference.timed_inputs()).times for _ in range(EMPTY_CALLS + 1)]
        self._empty = Calibration(tuple(awake[1:]))
        self.checks[Check.HANDSHAKE] = f"{self._empty.median.done_ms:.3f}"
        if not self.on_host:
            self._calibrate_gate(*((EMPTY_CALLS,) * 2 if is_large else (EMPTY_GATED_CALLS, MOVING_CALLS)))

    def _calibrate_gate(self, empty: int, moving: int) -> None:
        """Make gated calls without a candidate, all on one set of inputs that is never used again."""
        case = self._reference.timed_inputs()
        counts = {"empty": empty, "move": moving}
        calls = {
            do: tuple(self._caller.call_gated(case, do=do).times for _ in range(count + 1))[1:]
            for do, count in counts.items()
        }
        self._empty_gated = Calibration(calls["empty"], calls["move"])
        self._empty_gated.require_switch()

    def _build(self) -> Iterable[Case]:
        """Let the process load the candidate, and draw cases in the meantime."""
        self.candidate.clear_output()  # printed before the candidate was loaded
        self.has_source = True
        self.candidate.send(do="load")
        cases: Iterable[Case] = [self._reference.first] if self.is_brief else self._reference.cases()
        if self._reference.call_bytes < LARGE_CALL_BYTES:
            cases = list(cases)
        build_s = self._request.limits.build_s
        limit_s = load_limit_s(weight_bytes(self._reference), build_s)
        loaded = await_answer(self.candidate, "loaded", build_s, limit_s)
        self.candidate.pause()
        self.is_loaded = True
        source = WeightSource.NAME if loaded.get("weights") == WeightSource.NAME else WeightSource.SEED
        self.checks[Check.WEIGHTS] = WEIGHTS[source]
        self._checker.weights_by_seed = source is WeightSource.SEED
        return cases

    def _warm_up(self) -> None:
        """Call the candidate until it is warm. The last time awake bounds how long a gated call may take."""
        is_long = self.on_host and not self.is_brief
        until = time.monotonic() + (WARM_UP_S if is_long else WARM_UP_DEVICE_S)
        while self._warm_ups < 1 or (self._warm_ups < MAX_WARM_UPS and time.monotonic() < until):
            case = self._reference.timed_case()
            self._typical_s = self._compared(self._caller.call_awake(case), case).total_ms / 1e3
            self._warm_ups += 1

    def _try_gate(self) -> None:
        """Find out if calls can be gated. If not, ``why_awake`` says why."""
        if self._reference.is_random:
            self.why_awake = RANDOM_TASK
            return
        for _ in range(GATE_TRIES):
            case = self._reference.timed_case()
            try:
                times = self._compared(self._caller.call_gated(case, self._typical_s), case)
            except NotGated as reason:
                self.why_awake = str(reason)
            else:
                self.why_awake = self._why_not_gated(times)
                if self.why_awake is None:
                    return

    def _why_not_gated(self, times: CallTimes) -> str | None:
        """Return why a gated call that ended cannot be believed; None if it can."""
        if self._empty_gated.is_early(times):
            return NO_KERNEL
        return KEPT_DEVICE if self._empty_gated.is_disturbed(times) else None

    def _compared(self, called: CallResult, case: Case) -> CallTimes:
        """Check the results of a call, and return its times. Of huge calls only the chosen ones are compared."""
        self._checker.check_description(called.description)
        if self._caller.changed_settings:
            changed = ", ".join(self._caller.changed_settings)
            self.checks[Check.PRECISION] = f"the candidate changed {changed}; reset before every call"
        if case.expected or self._selection.is_chosen(called.times.total_ms):
            answered = case if case.expected else self._reference.answer(case)
            if answered is not None:  # otherwise the reference has no answer there
                self._checker.compare(answered, called.outputs)
                self._checker.compare_inputs(answered, self._caller.inputs[called.place])
        return called.times
