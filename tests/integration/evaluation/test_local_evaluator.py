"""The local evaluator with real workers, and with machines on which something is missing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.evaluator import REFERENCE, RIGHT, evaluate
from stark.core.errors import EvaluatorError
from stark.core.settings import EvaluationSettings
from stark.evaluation.local import check_machine
from stark.evaluation.open import open_evaluator
from stark_worker.processes import handles
from stark_worker.protocol.errors import GpuUnhealthy, MachineryFault, Outcome
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import Target
from stark_worker.scheduler import lane, worker
from worker_fixture import below, is_running


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


ENDLESS = """
import os, subprocess
subprocess.Popen(["sleep", "7531.5"], start_new_session=True)
while True:
    pass
"""


def enter(**settings):
    return asyncio.run(evaluate(open_evaluator(EvaluationSettings(allow_weak_sandbox=True, **settings))))


def pretend_worker(tmp_path, monkeypatch, script):
    """In place of the process that starts all others: a real one with a fate of its own."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\necho started >> {tmp_path}/starts\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    return lambda: len((tmp_path / "starts").read_text().splitlines())


def test_cancelling_ends_everything_the_candidate_started(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def cancel_midway():
        async with open_evaluator(EvaluationSettings(allow_weak_sandbox=True)) as evaluator:
            evaluation = asyncio.create_task(evaluator.evaluate(replace(RIGHT, candidate_source=ENDLESS)))
            while not is_running("sleep", "7531.5"):
                await asyncio.sleep(0.1)
            evaluation.cancel()
            with pytest.raises(asyncio.CancelledError):
                await evaluation

    asyncio.run(cancel_midway())
    assert not is_running("sleep", "7531.5")
    assert list(tmp_path.iterdir()) == []


def test_keys_stay_with_the_host(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-for-you")
    source = """
import os
seen = [f"{sorted(os.environ)}"]
for process in [os.getppid(), *filter(str.isdigit, os.listdir("/proc"))]:
    try:
        seen.append(open(f"/proc/{process}/environ").read())
    except OSError:
        pass
raise ValueError(" ".join(seen))
"""
    (report,) = asyncio.run(
        evaluate(open_evaluator(EvaluationSettings(allow_weak_sandbox=True)), replace(RIGHT, candidate_source=source))
    )
    assert report.outcome is Outcome.COMPILE_ERROR
    assert "PATH" in report.log
    assert "ANTHROPIC" not in report.log


def test_a_fault_of_the_machine_is_retried_and_then_raised(tmp_path, monkeypatch):
    starts = pretend_worker(tmp_path, monkeypatch, "echo 'the disk is full' >&2; exit 3")
    with pytest.raises(EvaluatorError, match=r"not the candidate's fault: .*the disk is full") as raised:
        asyncio.run(evaluate(open_evaluator(EvaluationSettings(allow_weak_sandbox=True, retries=2)), REFERENCE))
    assert "give the command again, or `stark resume` if a run had begun" in raised.value.next_step
    assert "`stark doctor`" in raised.value.next_step
    assert starts() >= 4  # two parents, and a new one for each retry


def test_a_worker_that_hangs_is_ended_and_not_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(lane, "REFERENCE_SLACK_S", -149.5)
    monkeypatch.setattr(handles, "EXIT_TIMEOUT_S", 0.5)
    pretend_worker(tmp_path, monkeypatch, "exec sleep 6420.75")
    with pytest.raises(EvaluatorError, match="No answer within"):
        asyncio.run(evaluate(open_evaluator(EvaluationSettings(allow_weak_sandbox=True)), REFERENCE))
    (report,) = asyncio.run(
        evaluate(open_evaluator(EvaluationSettings(allow_weak_sandbox=True)), replace(RIGHT, candidate_source=""))
    )
    assert report.outcome is Outcome.TIMEOUT  # the reference was in time, so it is the candidate
    assert not is_running("sleep", "6420.75")


SLEEPING = "import subprocess\nsubprocess.run(['sleep', '6420.25'])"


async def kill_all(name: str) -> None:
    """Whatever of ours has that name, as soon as a candidate sleeps."""
    known: set[int] = set()
    while True:
        await asyncio.sleep(0.1)
        new = {process for process, found in below(os.getpid()).items() if found == "sleep"} - known
        if new:
            known |= new
            for process in (process for process, found in below(os.getpid()).items() if found == name):
                os.kill(process, signal.SIGKILL)


def evaluated_while(name: str, source: str) -> tuple[EvalReport, EvalReport]:
    """The reports on a candidate, during which whatever has that name is killed, and on a right one afterwards."""

    async def kill_then_go_on():
        async with open_evaluator(EvaluationSettings(allow_weak_sandbox=True, retries=1)) as evaluator:
            killing = asyncio.create_task(kill_all(name))
            during = await evaluator.evaluate(replace(RIGHT, candidate_source=source))
            killing.cancel()
            return during, await evaluator.evaluate(RIGHT)

    return asyncio.run(kill_then_go_on())


def test_a_killed_fork_server_ends_no_other_process():
    napping = SLEEPING.replace("6420.25", "2.25") + "\n" + RIGHT.candidate_source
    during, after = evaluated_while("stark-forksrv", napping)
    assert during.outcome is after.outcome is Outcome.OK, (during, after)


@pytest.mark.parametrize("name", ["stark-supervise", "stark-candidate", "stark-referee"])
def test_after_any_process_is_killed_the_next_evaluation_is_normal(name):
    killed, right = evaluated_while(name, SLEEPING)
    assert killed.outcome in (Outcome.CRASH, Outcome.OUT_OF_MEMORY), killed
    assert right.outcome is Outcome.OK, right
    assert not is_running("sleep", "6420.25")


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_a_gpu_target_on_a_machine_without_a_gpu_says_what_is_missing():
    async def ask():
        async with open_evaluator(EvaluationSettings(target=Target.CUDA)) as evaluator:
            await evaluator.device()

    with pytest.raises(EvaluatorError, match=r"not the candidate's fault: .*GPU"):
        asyncio.run(ask())


def test_every_visible_gpu_is_a_lane(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,5")
    assert worker.devices(Target.TRITON) == ["0", "2", "5"]
    assert worker.devices(Target.CPU) == ["cpu"]


def test_an_unhealthy_gpu_is_not_used_again(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")

    async def use_all():
        used = []
        async with worker.Worker(Target.CUDA, tmp_path) as here:
            for _ in range(4):
                with contextlib.suppress(MachineryFault):
                    async with here._lane() as lane:
                        used.append(lane.name)
                        raise GpuUnhealthy("GPU unhealthy: sticky")
        return used

    assert asyncio.run(use_all()) == ["0", "1", "1", "1"]


def test_missing_torch_is_reported_with_a_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EvaluatorError, match=r"pip install 'stark-kernels\[local\]'"):
        enter()


def test_a_missing_compiler_is_reported_with_a_fix(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EvaluatorError, match=r"no-such-compiler was not found.*apt install g\+\+"):
        enter()


def test_a_compiler_may_be_named_with_arguments(monkeypatch):
    monkeypatch.setenv("CXX", "env c++")
    check_machine(Target.CPU)
    monkeypatch.setenv("CXX", "no-such-cache c++")
    with pytest.raises(EvaluatorError, match="no-such-cache was not found"):
        check_machine(Target.CPU)


def test_gpus_that_the_user_hides_are_no_missing_ones(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check_machine(Target.CPU)
    with pytest.raises(EvaluatorError, match=r"CUDA_VISIBLE_DEVICES is set to nothing.*Unset it"):
        check_machine(Target.TRITON)


def test_missing_ninja_is_reported_with_a_fix(tmp_path, monkeypatch):
    (tmp_path / "c++").write_text("#!/bin/sh\n")
    (tmp_path / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EvaluatorError, match="ninja was not found"):
        enter()


def test_other_systems_are_pointed_to_the_folder_evaluator(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(EvaluatorError, match="--evaluator folder"):
        enter()


@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "TMPDIR"])
def test_a_machine_without_a_work_folder_is_reported(tmp_path, monkeypatch, name):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(name, str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file") if name == "TMPDIR" else None)
    with pytest.raises(EvaluatorError, match="no place to work in"):
        enter()
