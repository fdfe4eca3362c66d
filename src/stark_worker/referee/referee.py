"""The trusted side: owns inputs, weights, expected outputs, the clock and the verdict.

A candidate's process can lie in every message. It cannot fake the bytes that are read here, nor the time at which they
became readable, and it cannot know inputs in advance. ``trial`` checks one candidate.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stark_worker.correctness.compare import Rules
from stark_worker.correctness.degenerate import degenerate_reasons
from stark_worker.correctness.model import is_out_of_memory
from stark_worker.correctness.reference import Reference
from stark_worker.correctness.traffic import certain_bytes
from stark_worker.device import cuda
from stark_worker.device.facts import device_facts
from stark_worker.processes.channel import Channel, ChannelClosed
from stark_worker.processes.environment import usable_cores
from stark_worker.processes.workdir import REPORT_FILE, REQUEST_FILE
from stark_worker.protocol.bound import Peaks
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.errors import Failure, GpuUnhealthy, MachineryFault, Outcome, TaskFault
from stark_worker.protocol.isolation import Isolation
from stark_worker.protocol.logs import cut
from stark_worker.protocol.report import Check, EvalReport
from stark_worker.protocol.request import EvalRequest, Score, Target
from stark_worker.referee.bound import find_bound
from stark_worker.referee.candidate import Candidate
from stark_worker.referee.changed_inputs import ChangeTester, has_risky_operations
from stark_worker.referee.sampling import correct_opponent, measure, opponent_of, prepare
from stark_worker.referee.shapes import try_other_shapes
from stark_worker.referee.trial import Trial
from stark_worker.sandbox.confine import enter_sandbox

TOO_LARGE = "its inputs and outputs take more memory than this device has. Make it smaller, or use a larger device."


def main(channel: Channel) -> None:
    """Judge one candidate of a task after another, until the channel closes. Work in the current folder."""
    referee = Referee()
    while True:
        try:
            message, files = channel.receive_with_files()
        except ChannelClosed:
            return
        if message["do"] == "judge":
            channel.send(**referee.answer(message, files))
        else:
            referee.start()


class Referee:
    """Judges the candidates of one task."""

    def __init__(self) -> None:
        self._reference: Reference | None = None
        self._tester: ChangeTester | None = None  # for a task on a GPU, until its reference is there
        self._isolation: Isolation | None = None  # of this process, if the task is untrusted

    def start(self) -> None:
        """Start CUDA, and before it the process that may die of it."""
        self._tester = ChangeTester(make_expendable_reference)
        with contextlib.suppress(RuntimeError):  # the error appears again at the first request
            cuda.init_context()

    def answer(self, message: dict[str, Any], files: list[int]) -> dict[str, Any]:
        """Judge the candidates whose descriptors are in ``files``; write the report to the current folder."""
        request = from_json(EvalRequest, Path(REQUEST_FILE).read_bytes())
        folders = [Path(folder) for folder in message["folders"]]
        if self._reference is None and request.target is not Target.CPU:
            self._tester = self._tester or ChangeTester(make_expendable_reference)
        try:
            if request.untrusted_task:
                self._confine(request, folders)
            ends = [files[4 * n : 4 * n + 4] for n, _ in enumerate(folders)]
            candidates = [Candidate(*each, request.limits) for each in zip(ends, folders, strict=True)]
            peaks = from_json(Peaks, message["peaks"]) if message["peaks"] else None
            report = self._judge(request, candidates, message["cache"], peaks)
        except (TaskFault, MachineryFault) as error:
            return {"did": "failed", "fault": error.kind, "text": str(error)}
        except (OSError, RuntimeError) as error:
            fault = _machinery_fault(error)
            return {"did": "failed", "fault": fault.kind, "text": str(fault)}
        Path(REPORT_FILE).write_text(to_json(report), encoding="utf-8")
        return {"did": "judged"}

    def _confine(self, request: EvalRequest, folders: list[Path]) -> None:
        """Confine this process before it loads an untrusted task; only its folder and the candidates' stay writable.

        CUDA shares memory only between processes of one user, so on a GPU the user stays.
        """
        gpu = request.target is not Target.CPU
        start = cuda.init_context if gpu else lambda: None
        self._isolation = enter_sandbox([], gpu, start, writable=folders, own_user=not gpu).isolation

    def _judge(self, request: EvalRequest, candidates: list[Candidate], cache: str, peaks: Peaks | None) -> EvalReport:
        began = time.monotonic()
        try:
            self._reference = self._reference or self._set_up(request)
            report = judge(request, candidates, self._reference, cache, peaks)
        finally:
            for candidate in candidates:
                candidate.close()
        if request.target is not Target.CPU:  # all processes of the candidate have ended
            cuda.check_health()
        return replace(
            report,
            device=device_facts(request.target),
            duration_s=time.monotonic() - began,
            reference_isolation=self._isolation,
        )

    def _set_up(self, request: EvalRequest) -> Reference:
        """Make the reference of a task. Leave out changed inputs of which its process would die."""
        reference = set_up(request, Path.cwd())
        if self._tester is not None:
            if request.score is Score.VERIFIED and has_risky_operations(reference):
                reference.left_out.update(self._tester.find_failing())
            self._tester.close()
            self._tester = None
            certain_bytes(reference)  # while the device's memory is free
        return reference


def make_expendable_reference(folder: Path) -> Reference:
    """Make the reference of the request in the current folder, in a process that may die."""
    request = from_json(EvalRequest, Path(REQUEST_FILE).read_bytes())
    if request.untrusted_task:
        enter_sandbox([], True, cuda.init_context, own_user=False)
    return set_up(request, folder)


def _machinery_fault(error: Exception) -> MachineryFault:
    """Classify an error of torch or the system. Torch's CUDA errors are RuntimeErrors; only the text differs."""
    if "CUDA" not in str(error):
        return MachineryFault(f"{type(error).__name__}: {error}")
    if "out of memory" in str(error):
        return MachineryFault(f"GPU memory exhausted: {error}")
    return GpuUnhealthy(f"GPU unhealthy: {error}")


def set_up(request: EvalRequest, folder: Path) -> Reference:
    """Make the reference of a task, once for all its candidates."""
    if missing := cuda.find_missing(request.target):
        raise MachineryFault(missing)
    torch.set_num_threads(usable_cores())
    cuda.pin_precision(request.allows_tf32)
    device = "cpu" if request.target is Target.CPU else "cuda"
    if device == "cuda":
        cuda.init_context()  # the generator of an unused device cannot be seeded
    return Reference(request.task_source, request.precision, folder, device, request.score, Rules.of(request))


def judge(
    request: EvalRequest, candidates: list[Candidate], reference: Reference, cache: str, peaks: Peaks | None = None
) -> EvalReport:
    """Check and time a candidate, in turns with its opponent if the request names one.

    With the device's peaks, the report on a task's own model holds its bound. Each trial takes one process off
    ``candidates``; the rest try other shapes.
    """
    reference.draw_first_case()
    starts_cuda = request.target is not Target.CPU and not request.untrusted_task  # otherwise CUDA starts later
    for candidate in candidates:
        candidate.await_start(gpu=starts_cuda)
    with contextlib.ExitStack() as stack:
        trials: list[Trial] = []
        for side in [request] if request.opponent_source is None else [request, opponent_of(request)]:
            candidate = candidates.pop(0)
            stack.callback(candidate.close)
            trials.append(stack.enter_context(Trial(side, candidate, reference, cache)))
        report = _verdict(request, trials, reference)
    if request.is_reference and report.timing is not None:  # all memory is free again
        report = with_degenerate_reasons(report, reference)
        if peaks is not None and report.timing is not None:
            report = replace(report, bound=find_bound(request, reference, report.timing, peaks))
    if request.with_labels and report.labels is not None:
        shapes = try_other_shapes(request, candidates, reference, cache)
        report = replace(report, labels=replace(report.labels, other_shapes=shapes))
    reference.release_first_case()
    return report


def with_degenerate_reasons(report: EvalReport, reference: Reference) -> EvalReport:
    """Add to the report on a task's own model why the task is degenerate, if it is.

    If memory runs out here, the task is too large: no candidate is running.
    """
    try:
        reasons = degenerate_reasons(reference)
    except (RuntimeError, TaskFault) as error:
        if not is_out_of_memory(error):
            raise
        raise TaskFault(f"It cannot be checked for degenerate answers here: {TOO_LARGE}") from error
    return replace(report, degenerate=" ".join(reasons)) if reasons else report


def _verdict(request: EvalRequest, trials: list[Trial], reference: Reference) -> EvalReport:
    trial = trials[0]
    try:
        return _report_correct(request, trials, reference)
    except Failure as failure:
        return _failed(trial, failure)
    except (torch.cuda.OutOfMemoryError, TaskFault) as error:
        if not is_out_of_memory(error):
            raise
        if request.is_reference or not trial.has_source:
            raise TaskFault(f"It cannot be checked and timed here: {TOO_LARGE}") from error
        # Memory sufficed for the reference, before the candidate was loaded.
        log = "The candidate leaves too little of the device's memory for the check."
        return _failed(trial, Failure(Outcome.OUT_OF_MEMORY, log))


def _failed(trial: Trial, failure: Failure) -> EvalReport:
    return EvalReport(
        failure.outcome,
        log=failure.log,
        rule=failure.rule,
        checks=trial.checks,
        built=trial.is_loaded,
        isolation=trial.isolation,
        busy_warning=trial.busy_warning,
        dtype_mismatch=failure.dtype_mismatch,
    )


def _report_correct(request: EvalRequest, trials: list[Trial], reference: Reference) -> EvalReport:
    """Check and time the candidate; raise ``Failure`` if it is wrong."""
    trial = trials[0]
    prepare(trial, trials[1:])
    timing, *opponents = measure(trials, reference)
    leading = timing.median_ms < request.profile_below_ms
    profile = trial.profile() if leading or request.with_labels else None
    interface = trial.interface() if request.with_labels else None
    if opponents and not trial.on_host:
        trial.end()
        opponents[0], trial.checks[Check.OPPONENT] = correct_opponent(opponents[0], trials[1], reference)
    return EvalReport(
        Outcome.OK,
        timing,
        checks=trial.checks,
        isolation=trial.isolation,
        busy_warning=trial.busy_warning,
        profile=cut(str(profile.get("profile"))) if profile and leading else None,
        opponent=opponents[0] if opponents else None,
        labels=replace(trial.labels(profile), interface=interface),
        seeds=trial.seeds if request.with_labels else {},
    )
