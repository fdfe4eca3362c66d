"""The trusted side: owns inputs, weights, expected outputs, the clock and the verdict.

A candidate's process can lie about everything it says, but not about bytes that are read here, nor about the time at
which they became readable, nor about inputs it has not seen. Every call is of the same kind: fresh inputs are written
to the arena, the outputs there are overwritten, the clock runs from "call" to "done", and the outputs are read and
compared. Warm-up calls alone repeat their inputs and are not compared; nothing is decided by them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from stark_worker.compare import mismatch, tolerance
from stark_worker.device import device_facts
from stark_worker.memory import JOB_FILE, SOURCE_FILE, Arena, Job, Layout, fix_size, structure
from stark_worker.protocol import EvalReport, EvalRequest, Outcome, Timing, to_json
from stark_worker.reference import Case, Reference, TaskFault
from stark_worker.sandbox import ISOLATION, START_S, Candidate, Failure, MachineryFault, threads

WARM_UPS, WARM_UP_S = 100, 1.0
SAMPLES_FEW, SAMPLES_ENOUGH, SAMPLES_MOST = 5, 30, 100
SAMPLING_S, SAMPLING_MOST_S = 2.0, 10.0
CALIBRATIONS = 9
LATE_FACTOR, LATE_MS = 5.0, 2.0
AHEAD_BYTES = 2**28  # up to this size of the arena, cases are made while the candidate builds


@dataclass(frozen=True)
class Call:
    """What the referee's clock saw of one call, in milliseconds: until "done", and from there until handed over.

    ``own_copy_ms`` is how long the referee itself took just afterwards to copy as much.
    """

    forward_ms: float
    late_ms: float
    own_copy_ms: float = 0.0


def judge(request: EvalRequest, candidate: Candidate, folder: Path) -> EvalReport:
    """Compile, check and time one candidate. ``folder`` is the referee's own."""
    began = time.monotonic()
    torch.set_num_threads(threads())
    reference = Reference(request.task_source, request.precision, folder)
    job = write_job(request, reference, candidate.folder)
    trial = Trial(request, candidate, reference, job)
    outcome, log, rule, timing = Outcome.OK, "", None, None
    try:
        timing = trial.hold()
    except Failure as failure:
        outcome, log, rule = failure.outcome, failure.log, failure.rule
    duration = time.monotonic() - began
    return EvalReport(outcome, timing, log, rule, trial.checks, device=device_facts(), duration_s=duration)


def write_job(request: EvalRequest, reference: Reference, folder: Path) -> Job:
    """Lay out the arena and put into the candidate's folder what its process needs to know."""
    layout = Layout()
    job = Job(
        entry=request.entry,
        dtype=str(reference.dtype).removeprefix("torch."),
        threads=threads(),
        construct_seed=reference.construct_seed,
        construct=reference.construct,
        construct_tensors=layout.place_all(reference.construct_tensors),
        weights={name: layout.place(weight) for name, weight in reference.model.state_dict().items()},
        arguments=reference.arguments,
        inputs=layout.place_all(reference.first.inputs),
        outputs=layout.place_all(reference.outputs),
        size=layout.size,  # last, when all places are known
    )
    (folder / JOB_FILE).write_text(to_json(job), encoding="utf-8")
    (folder / SOURCE_FILE).write_text(request.candidate_source, encoding="utf-8")
    return job


class Trial:
    """One candidate before the referee."""

    def __init__(self, request: EvalRequest, candidate: Candidate, reference: Reference, job: Job) -> None:
        self.checks = {"isolation": ISOLATION}
        self._request, self._candidate, self._reference, self._job = request, candidate, reference, job
        self._left_s = request.limits.run_s
        fix_size(candidate.arena, job.size)
        arena = Arena(candidate.arena, job.size)
        self._inputs, self._outputs = arena.views(job.inputs), arena.views(job.outputs)
        for spot, tensor in zip(job.construct_tensors, reference.construct_tensors, strict=True):
            arena.view(spot).copy_(tensor)
        for name, weight in reference.model.state_dict().items():
            arena.view(job.weights[name]).copy_(weight)

    def hold(self) -> Timing:
        """The whole trial; a candidate that fails raises ``Failure``."""
        plain_ms = self._calibrate()
        cases = self._build()
        checked = len([self._call_checked(case) for case in cases])
        exact = "double precision" if self._reference.exact else "the task's own precision"
        self.checks["correctness"] = f"{checked} input sets against a reference in {exact}"
        self._warm_up()
        calls = self._measure()
        self._refuse_late_work(calls, plain_ms)
        self.checks["timing"] = f"{len(calls)} calls, each on inputs not seen before and each compared"
        return Timing(tuple(call.forward_ms for call in calls))

    def _calibrate(self) -> float:
        """How long handing over outputs takes when there is no candidate yet: nothing is the candidate's fault here."""
        try:
            self._candidate.tell(do="prepare")
            self._candidate.expect("ready", START_S)
            calls = [self._call(0, START_S)[0] for _ in range(CALIBRATIONS)]
        except Failure as failure:
            raise MachineryFault(f"The candidate's process did not start. {failure.log}") from failure
        self.checks["handshake_ms"] = f"{statistics.median(call.forward_ms for call in calls):.3f}"
        return statistics.median(call.late_ms for call in calls)

    def _build(self) -> Iterable[Case]:
        """Have the candidate loaded and make cases meanwhile."""
        self._candidate.forget_output()  # so far it was not the candidate that printed
        self._candidate.tell(do="load")
        cases: Iterable[Case] = self._reference.cases()
        if self._job.size < AHEAD_BYTES:
            cases = list(cases)
        loaded = self._candidate.expect("loaded", self._request.limits.build_s)
        self.checks["weights"] = "copied by name" if loaded.get("weights") == "copied" else "by seed and order"
        return cases

    def _warm_up(self) -> None:
        until = time.monotonic() + WARM_UP_S
        for number in range(WARM_UPS):
            if time.monotonic() > until:
                break
            self._call_on_time(number)

    def _measure(self) -> list[Call]:
        """Enough calls for a stable median, fewer of a slow candidate."""
        calls: list[Call] = []
        began = time.monotonic()
        while len(calls) < SAMPLES_MOST:
            spent = time.monotonic() - began
            enough = SAMPLES_ENOUGH if spent < SAMPLING_MOST_S else SAMPLES_FEW
            if spent > SAMPLING_S and len(calls) >= enough:
                break
            calls.append(self._call_checked(self._reference.timed_case()))
        return calls

    def _refuse_late_work(self, calls: list[Call], plain_ms: float) -> None:
        """A busy machine slows copying for everybody, so what is allowed follows the referee's own copies as well."""
        late_ms = statistics.median(call.late_ms for call in calls)
        own_ms = statistics.median(call.own_copy_ms for call in calls)
        limit_ms = max(LATE_FACTOR * plain_ms, LATE_FACTOR * own_ms, LATE_MS)
        if late_ms > limit_ms:
            raise Failure(
                Outcome.REJECTED,
                f"Work went on after forward() had returned: handing over the results took {late_ms:.2f} ms, where"
                f" copying as much takes {plain_ms:.2f} ms. All work has to be finished when forward() returns.",
                "late_work",
            )

    def _call_checked(self, case: Case) -> Call:
        """One call on a case, with its outputs compared."""
        self._write(case)
        call, hint = self._call_on_time(case.seed)
        begin = time.perf_counter()
        got = [output.clone() for output in self._outputs]
        call = replace(call, own_copy_ms=(time.perf_counter() - begin) * 1e3)
        self._compare_kinds(hint)
        for number, (mine, expected) in enumerate(zip(got, case.expected, strict=True)):
            allowed = tolerance(
                expected, self._reference.own_errors[number], self._request.precision, self._request.score
            )
            if difference := mismatch(mine, expected, allowed):
                raise self._wrong(f"Output {number} differs ({case.name}):\n{difference}")
        return call

    def _write(self, case: Case) -> None:
        if [tensor.shape for tensor in case.inputs] != [view.shape for view in self._inputs]:
            raise TaskFault("get_inputs() returns other shapes from call to call; they have to stay the same.")
        for view, tensor in zip(self._inputs, case.inputs, strict=True):
            view.copy_(tensor)
        for view in self._outputs:
            _spoil(view)

    def _call_on_time(self, seed: int) -> tuple[Call, dict[str, object]]:
        """One call, its time taken from what the candidate has left."""
        began = time.monotonic()
        try:
            return self._call(seed, self._left_s)
        finally:
            self._left_s -= time.monotonic() - began

    def _call(self, seed: int, within_s: float) -> tuple[Call, dict[str, object]]:
        begin = time.perf_counter()
        self._candidate.tell(do="call", seed=seed)
        self._candidate.expect("done", within_s)
        done = time.perf_counter()
        hint = self._candidate.expect("copied", within_s - (done - begin))
        end = time.perf_counter()
        return Call((done - begin) * 1e3, (end - done) * 1e3), hint

    def _compare_kinds(self, hint: dict[str, object]) -> None:
        """Whether the outputs look right. It is a hint only: what was not copied is still NaN in the arena."""
        if hint.get("plain") is not True:
            raise self._wrong("The outputs have to be plain torch tensors.")
        expected = [f"{spot.dtype}{list(spot.shape)}" for spot in self._job.outputs]
        if hint.get("kinds") != expected:
            raise self._wrong(f"The outputs are {hint.get('kinds')}, expected {expected}.")
        if structure(str(hint.get("structure"))) != self._reference.structure:
            raise self._wrong("The outputs are nested differently from the reference's.")

    def _wrong(self, log: str) -> Failure:
        if self.checks.get("weights") != "copied by name":
            log += (
                "\nThe candidate's state_dict has other names or shapes than the reference's, so weights agree only if"
                " both constructors draw them in the same order."
            )
        return Failure(Outcome.WRONG_RESULT, log)


def _spoil(view: torch.Tensor) -> None:
    """Overwrite an output, so that nothing of an earlier call can pass for a result."""
    if view.is_floating_point():
        view.fill_(float("nan"))
    elif view.dtype is torch.bool:
        view.logical_not_()
    else:
        view.fill_(torch.iinfo(view.dtype).min)
