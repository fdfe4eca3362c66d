"""The local evaluator with real workers, and with machines on which something is missing."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.evaluator import RIGHT, evaluate
from integration.test_worker import running
from stark.errors import EvaluatorError, TaskError
from stark.evaluation import local, open_evaluator
from stark.settings import EvaluationSettings
from stark_worker.protocol import Outcome, Target

ENDLESS = """
import os, subprocess
subprocess.Popen(["sleep", "7531.5"], start_new_session=True)
while True:
    pass
"""


def enter(**settings):
    return asyncio.run(evaluate(open_evaluator(EvaluationSettings(**settings))))


def pretend_worker(tmp_path, monkeypatch, script):
    """A worker that is a real process with a fate of its own."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\necho started >> {tmp_path}/starts\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    return lambda: len((tmp_path / "starts").read_text().splitlines())


def test_cancelling_ends_everything_the_candidate_started(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def cancel_midway():
        async with open_evaluator(EvaluationSettings()) as evaluator:
            evaluation = asyncio.create_task(evaluator.evaluate(replace(RIGHT, candidate_source=ENDLESS)))
            until = time.monotonic() + 60
            while not running("sleep", "7531.5"):
                assert time.monotonic() < until, "the candidate never started"
                await asyncio.sleep(0.1)
            evaluation.cancel()
            with pytest.raises(asyncio.CancelledError):
                await evaluation

    asyncio.run(cancel_midway())
    assert not running("sleep", "7531.5")
    assert list(tmp_path.iterdir()) == []


def test_keys_stay_with_the_host(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-for-you")
    source = "import os\nraise ValueError(f\"{sorted(os.environ)} {open('/proc/%d/environ' % os.getppid()).read()}\")"
    (report,) = asyncio.run(evaluate(open_evaluator(EvaluationSettings()), replace(RIGHT, candidate_source=source)))
    assert report.outcome is Outcome.COMPILE_ERROR
    assert "PATH" in report.log
    assert "ANTHROPIC" not in report.log


def test_a_fault_of_the_machinery_is_retried_and_then_told(tmp_path, monkeypatch):
    starts = pretend_worker(tmp_path, monkeypatch, "echo 'worker: the disk is full' >&2; exit 3")
    with pytest.raises(EvaluatorError, match="no fault of the candidate: the disk is full") as told:
        asyncio.run(evaluate(open_evaluator(EvaluationSettings(retries=2)), RIGHT))
    assert "resume" in str(told.value)
    assert starts() == 3


def test_a_worker_that_hangs_is_ended_and_not_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "SLACK_S", -149.5)
    starts = pretend_worker(tmp_path, monkeypatch, "exec sleep 6420.75")
    with pytest.raises(EvaluatorError, match="no answer within"):
        asyncio.run(evaluate(open_evaluator(EvaluationSettings()), replace(RIGHT, entry="Model")))
    (report,) = asyncio.run(evaluate(open_evaluator(EvaluationSettings()), RIGHT))
    assert report.outcome is Outcome.TIMEOUT  # the reference was in time, so it is the candidate
    assert starts() == 2
    assert not running("sleep", "6420.75")


def test_a_worker_that_is_killed_every_time_is_the_candidates_doing(tmp_path, monkeypatch):
    starts = pretend_worker(tmp_path, monkeypatch, "kill -9 $$")
    (report,) = asyncio.run(evaluate(open_evaluator(EvaluationSettings()), RIGHT))
    assert (report.outcome, starts()) == (Outcome.CRASH, 3)
    with pytest.raises(EvaluatorError, match="no fault of the candidate"):
        asyncio.run(evaluate(open_evaluator(EvaluationSettings()), replace(RIGHT, entry="Model")))


def test_an_answer_that_is_no_report_is_told(tmp_path, monkeypatch):
    pretend_worker(tmp_path, monkeypatch, "echo '{}'")
    with pytest.raises(EvaluatorError, match="cannot be read"):
        asyncio.run(evaluate(open_evaluator(EvaluationSettings()), RIGHT))


def test_a_broken_task_is_not_retried(tmp_path, monkeypatch):
    starts = pretend_worker(tmp_path, monkeypatch, "echo 'task: Model fails: it is odd' >&2; exit 4")
    with pytest.raises(TaskError, match="Model fails: it is odd"):
        asyncio.run(evaluate(open_evaluator(EvaluationSettings()), RIGHT))
    assert starts() == 1


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_a_gpu_target_on_a_machine_without_a_gpu_says_what_is_missing():
    async def ask():
        async with open_evaluator(EvaluationSettings(target=Target.CUDA)) as evaluator:
            await evaluator.device()

    with pytest.raises(EvaluatorError, match=r"no fault of the candidate: .*GPU"):
        asyncio.run(ask())


def test_every_visible_gpu_is_a_lane(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,5")
    assert open_evaluator(EvaluationSettings(target=Target.TRITON)).slots == 3
    assert open_evaluator(EvaluationSettings(target=Target.CPU)).slots == 1


def test_an_unhealthy_gpu_is_not_used_again(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    script = f'echo $CUDA_VISIBLE_DEVICES >> {tmp_path}/used; echo "worker: GPU unhealthy: sticky" >&2; exit 3'
    pretend_worker(tmp_path, monkeypatch, script)

    async def ask():
        evaluator = open_evaluator(EvaluationSettings(target=Target.CUDA, retries=3))
        with pytest.raises(EvaluatorError, match="sticky"):
            await evaluator.device()

    asyncio.run(ask())
    assert (tmp_path / "used").read_text().split() == ["0", "1", "1", "1"]


def test_missing_torch_is_told_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EvaluatorError, match=r"pip install 'stark-kernels\[local\]'"):
        enter()


def test_a_missing_compiler_is_told_with_the_remedy(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EvaluatorError, match=r"no-such-compiler was not found.*apt install g\+\+"):
        enter()


def test_missing_ninja_is_told_with_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "c++").write_text("#!/bin/sh\n")
    (tmp_path / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EvaluatorError, match="ninja was not found"):
        enter()


def test_other_systems_are_pointed_to_the_folder_evaluator(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(EvaluatorError, match="folder evaluator"):
        enter()
