"""The doctor on machines that have everything and on such that lack something: nothing is believed, all is tried."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from stark_process import stark_command
from stark_worker.doctor.requirements import MissingRequirement, requirements
from stark_worker.protocol.findings import State
from stark_worker.protocol.request import Target
from stark_worker.sandbox.levels import Control
from stub_server import Behaviour, StubServer

HOST_ONLY = ["--evaluator", "fakes:HashEvaluator", "--json"]
REQUIREMENTS = {requirement.name: requirement for requirement in requirements(allow_weak_sandbox=True)}
without_gpu = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    return {each["name"].strip(): each for each in json.loads(done.stdout)["findings"]}


def lack(name: str, target: Target = Target.CPU) -> MissingRequirement:
    with pytest.raises(MissingRequirement) as caught:
        REQUIREMENTS[name].attempt(target)
    assert caught.value.fix
    return caught.value


def test_a_machine_that_judges_kernels_is_found_to_work(tmp_path):
    done = stark_command("doctor", "--json", "--allow-weak-sandbox", "--runs", tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    found = findings(done)
    assert json.loads(done.stdout)["works"]
    assert {*REQUIREMENTS, *Control, "sandbox", "versions", "folder of runs", "model playbook"} <= found.keys()
    for name in ("C++ compiler", "Python's headers", "ninja", "torch", "a kernel, judged", "limits"):
        assert found[name]["state"] == State.OK
    assert "built, checked and timed" in found["a kernel, judged"]["detail"]


def test_a_compiler_that_is_not_there_or_does_not_compile(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in lack("C++ compiler").what
    monkeypatch.setenv("CXX", "false")
    assert "false fails" in lack("C++ compiler").what
    monkeypatch.setenv("CXX", "true")  # says yes and makes nothing
    assert "program" in lack("C++ compiler").what


def test_python_without_the_headers_that_every_kernel_includes(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert str(tmp_path / "Python.h") in lack("Python's headers").what


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert str(tmp_path / "file") in lack("disk").what


@without_gpu
def test_a_gpu_is_missing_where_the_target_needs_one():
    assert "libcuda" in lack("GPU").what or "cuInit" in lack("GPU").what
    assert Target.CPU not in REQUIREMENTS["GPU"].targets
    assert set(REQUIREMENTS["GPU"].targets) == {Target.CUDA, Target.TRITON}


def test_where_runs_are_kept_has_to_be_writable(tmp_path):
    (tmp_path / "file").touch()
    done = stark_command("doctor", *HOST_ONLY, "--runs", tmp_path / "file" / "runs")
    assert done.returncode == 1
    assert findings(done)["folder of runs"]["state"] == State.MISSING


def test_a_worker_elsewhere_has_to_have_served_its_folder(tmp_path):
    words = ["doctor", "--json", "--evaluator", "folder", "--set", f"evaluation.folder={tmp_path}"]
    missing = stark_command(*words)
    assert missing.returncode == 1
    assert findings(missing)["worker"]["fix"].startswith(f"python -m stark_worker serve {tmp_path} --target ")
    (tmp_path / "device.json").write_text("{}")
    assert stark_command(*words).returncode == 0


@pytest.mark.parametrize(("status", "state"), [(200, State.OK), (401, State.MISSING)])
def test_a_model_is_called_once_and_briefly(status, state):
    with StubServer(Behaviour(text="ready", status=status, error="no such key")) as server:
        words = ["--model", "m", "--base-url", f"{server.url}/v1"]
        done = stark_command("doctor", *HOST_ONLY, *words)
        (request,) = server.requests
    assert done.returncode == (0 if state is State.OK else 1), done.stderr
    assert findings(done)["model m"]["state"] == state
    assert max(request.body.get("max_tokens", 0), request.body.get("max_completion_tokens", 0)) == 256


def test_what_is_missing_is_shown_with_its_fix():
    done = stark_command("doctor", "--evaluator", "folder")
    assert done.returncode == 1
    lines = [line.split() for line in done.stdout.splitlines()]
    row = next(number for number, words in enumerate(lines) if words[0] == "worker")
    assert lines[row][1] == "missing"
    assert " ".join(lines[row + 1]) == "fix: Name one with --set evaluation.folder=DIR."
    assert "A run cannot work here yet" in done.stdout
    assert "Traceback" not in done.stderr
