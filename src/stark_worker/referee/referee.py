"""The trusted side: owns inputs, weights, expected outputs, the clock and the verdict.

A candidate's process can lie about everything it says, but not about bytes that are read here, nor about the time at
which they became readable, nor about inputs it has not seen. ``trial`` holds one candidate against that.
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
from stark_worker.device import cuda
from stark_worker.device.facts import device_facts
from stark_worker.processes.channel import Channel, ChannelClosed
from stark_worker.processes.environment import usable_cores
from stark_worker.processes.workdir import REPORT_FILE, REQUEST_FILE
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.errors import Failure, GpuUnhealthy, MachineryFault, Outcome, TaskFault
from stark_worker.protocol.isolation import Isolation
from stark_worker.protocol.logs import cut
from stark_worker.protocol.report import Check, EvalReport
from stark_worker.protocol.request import EvalRequest, Target
from stark_worker.referee import side_by_side
from stark_worker.referee.candidate import Candidate
from stark_worker.referee.sampling import opponent_errors_as_machine_faults
from stark_worker.referee.shapes import try_other_shapes
from stark_worker.referee.side_by_side import (
    choose_opponent_timing,
    measure_alone,
    measure_calls,
    opponent_of,
    prepare,
    timings,
)
from stark_worker.referee.trial import Trial
from stark_worker.sandbox.confine import enter_sandbox

TOO_LARGE = "its inputs and outputs take more memory than this device has. Make it smaller, or use a larger device."


def main(channel: Channel) -> None:
    """Judge one candidate of a task after another, until nobody asks any more. The folder we are in is our own."""
    referee = Referee()
    while True:
        try:
            message, files = channel.receive_with_files()
        except ChannelClosed:
            return
        if message["do"] == "judge":
            channel.send(**referee.answer(message, files))
        else:
            with contextlib.suppress(RuntimeError):  # what is wrong with it is told when somebody asks
                cuda.start()


class Referee:
    """Knows one task, and judges its candidates."""

    def __init__(self) -> None:
        self._reference: Reference | None = None
        self._isolation: Isolation | None = None  # of this process, where the task is untrusted

    def answer(self, message: dict[str, Any], files: list[int]) -> dict[str, Any]:
        """Judge the candidates whose ends are in these files; the report is left in our folder."""
        request = from_json(EvalRequest, Path(REQUEST_FILE).read_bytes())
        folders = [Path(folder) for folder in message["folders"]]
        try:
            if request.untrusted_task:
                self._confine(request, folders)
            ends = [files[4 * n : 4 * n + 4] for n, _ in enumerate(folders)]
            candidates = [Candidate(*each, request.limits) for each in zip(ends, folders, strict=True)]
            report = self._judge(request, candidates, message["cache"])
        except (TaskFault, MachineryFault) as error:
            return {"did": "failed", "fault": error.kind, "text": str(error)}
        except (OSError, RuntimeError) as error:
            fault = _machinery_fault(error)
            return {"did": "failed", "fault": fault.kind, "text": str(fault)}
        Path(REPORT_FILE).write_text(to_json(report), encoding="utf-8")
        return {"did": "judged"}

    def _confine(self, request: EvalRequest, folders: list[Path]) -> None:
        """Lock ourselves in before an untrusted task is loaded; what is left are our folder and the candidates'.

        CUDA shares memory between processes of one user alone, so on a GPU the user stays.
        """
        gpu = request.target is not Target.CPU
        start = cuda.start if gpu else lambda: None
        self._isolation = enter_sandbox([], gpu, start, writable=folders, own_user=not gpu).isolation

    def _judge(self, request: EvalRequest, candidates: list[Candidate], cache: str) -> EvalReport:
        began = time.monotonic()
        try:
            self._reference = self._reference or set_up(request)
            report = judge(request, candidates, self._reference, cache)
        finally:
            for candidate in candidates:
                candidate.close()
        if request.target is not Target.CPU:  # now that all that the candidate started is gone
            cuda.check_health()
        return replace(
            report,
            device=device_facts(request.target),
            duration_s=time.monotonic() - began,
            reference_isolation=self._isolation,
        )


def _machinery_fault(error: Exception) -> MachineryFault:
    """Classify an error of torch or the system. Torch raises RuntimeError for most CUDA errors; only the text differs."""
    if "CUDA" not in str(error):
        return MachineryFault(f"{type(error).__name__}: {error}")
    if "out of memory" in str(error):
        return MachineryFault(f"GPU memory exhausted: {error}")
    return GpuUnhealthy(f"GPU unhealthy: {error}")


def set_up(request: EvalRequest) -> Reference:
    """The reference of a task, made once for all its candidates."""
    if lack := cuda.missing(request.target):
        raise MachineryFault(lack)
    torch.set_num_threads(usable_cores())
    cuda.pin_precision(request.allows_tf32)
    device = "cpu" if request.target is Target.CPU else "cuda"
    if device == "cuda":
        cuda.start()  # generators of a device that is not in use cannot be seeded
    return Reference(request.task_source, request.precision, Path.cwd(), device, request.score, Rules.of(request))


def judge(request: EvalRequest, candidates: list[Candidate], reference: Reference, cache: str) -> EvalReport:
    """Check and time a candidate, and beside it an opponent where the request names one.

    Whoever is judged is taken off the list of candidates; the rest are for other shapes.
    """
    reference.draw_first_case()
    begins = request.target is not Target.CPU and not request.untrusted_task  # that one's have to wait for us
    for candidate in candidates:
        candidate.await_start(gpu=begins)
    with contextlib.ExitStack() as stack:
        trials: list[Trial] = []
        for side in [request] if request.opponent_source is None else [request, opponent_of(request)]:
            candidate = candidates.pop(0)
            stack.callback(candidate.close)
            trials.append(stack.enter_context(Trial(side, candidate, reference, cache, is_opponent=bool(trials))))
        report = _verdict(request, trials, reference)
    if request.is_reference and report.timing is not None:  # now that all memory is ours again
        report = with_degenerate_reasons(report, reference)
    if request.with_labels and report.labels is not None:
        shapes = try_other_shapes(request, candidates, reference, cache)
        report = replace(report, labels=replace(report.labels, other_shapes=shapes))
    reference.release_first_case()
    return report


def with_degenerate_reasons(report: EvalReport, reference: Reference) -> EvalReport:
    """The report on a task's own model, with why the task is degenerate where it is.

    Nobody is judged here any more, so that memory which does not suffice is no candidate's fault.
    """
    try:
        reasons = degenerate_reasons(reference)
    except (RuntimeError, TaskFault) as error:
        if not is_out_of_memory(error):
            raise
        raise TaskFault(f"Whether it tests anything cannot be found out here: {TOO_LARGE}") from error
    return replace(report, degenerate=" ".join(reasons)) if reasons else report


def _verdict(request: EvalRequest, trials: list[Trial], reference: Reference) -> EvalReport:
    trial = trials[0]
    try:
        return _accepted(request, trials, reference)
    except Failure as failure:
        return _failed(trial, failure)
    except torch.cuda.OutOfMemoryError as error:
        if request.is_reference or not trial.loaded:
            raise TaskFault(f"It cannot be checked and timed here: {TOO_LARGE}") from error
        # There was enough for the reference, before the candidate was loaded.
        log = "The candidate leaves too little of the device's memory for the check."
        return _failed(trial, Failure(Outcome.OUT_OF_MEMORY, log))


def _failed(trial: Trial, failure: Failure) -> EvalReport:
    return EvalReport(
        failure.outcome,
        log=failure.log,
        rule=failure.rule,
        checks=trial.checks,
        built=trial.loaded,
        isolation=trial.isolation,
        busy_warning=trial.busy_warning,
        dtype_mismatch=failure.dtype_mismatch,
    )


def _accepted(request: EvalRequest, trials: list[Trial], reference: Reference) -> EvalReport:
    """The report on a candidate that is right; one that is not raises ``Failure``."""
    trial = trials[0]
    prepare(trial, trials[1:])
    seen = measure_calls(trials, reference)
    timing, *opponents = timings(seen)
    leading = timing.median_ms < request.profile_below_ms
    told = trial.profile() if leading or request.with_labels else None
    if opponents and not trial.on_host:
        trial.end()
        with opponent_errors_as_machine_faults():
            seen[1] = measure_alone(seen[1], seen[0], reference)
            opponents[0], trial.checks[Check.OPPONENT] = choose_opponent_timing(seen[1], opponents[0])
    if seen[0].single_calls:
        timing = side_by_side.timed(timing, *seen)
    return EvalReport(
        Outcome.OK,
        timing,
        checks=trial.checks,
        isolation=trial.isolation,
        busy_warning=trial.busy_warning,
        profile=cut(str(told.get("profile"))) if told and leading else None,
        opponent=opponents[0] if opponents else None,
        labels=trial.labels(told),
        seeds=trial.seeds if request.with_labels else {},
    )
