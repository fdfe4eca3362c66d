"""Bundles from the command line, and what an untrusted task can do to the machine it is verified on."""

from __future__ import annotations

import json
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from adversarial.processes import CHANNELS, as_ordinary_user
from conformance.evaluator import KERNEL, RIGHT, TASK
from fakes import TASK as PRETEND_TASK
from fakes import digest as hashed
from stark.evaluation.bundle import Bundle, pack, unpack
from stark_process import stark_command
from stark_worker.protocol.errors import MachineryFault, Outcome, TaskFault
from stark_worker.protocol.isolation import Level
from stark_worker.protocol.request import Limits
from worker_fixture import running_worker

PRETEND = ["--evaluator", "fakes:HashEvaluator"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that found something, in which secrets were planted everywhere."""
    folder = tmp_path_factory.mktemp("verify") / "run"
    task = folder.parent / "task.py"
    task.write_text(PRETEND_TASK)
    words = ["optimize", task, "--model", "fakes:PretendModel", *PRETEND, "--attempts", 8, "--run", folder]
    done = stark_command(*words, OPENAI_API_KEY="sk-canary", MY_SECRET="canary-too")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def bundle(run, tmp_path):
    file = tmp_path / "bundle.zip"
    done = stark_command("export", run, "--bundle", file, OPENAI_API_KEY="sk-canary", MY_SECRET="canary-too")
    assert done.returncode == 0, done.stderr
    return file


def kernel_with(outcome: str) -> str:
    """A source that the pretend evaluator thinks this of."""
    sources = (f"class ModelNew: ...  # {number}\n" for number in range(10_000))
    if outcome == "failed":
        return next(source for source in sources if hashed(source) % 4 == 0)
    return next(source for source in sources if hashed(source) % 4 and 1.0 + hashed(source) % 1900 / 100 > 12)


def test_a_run_is_exported_and_its_claim_holds(bundle, run, tmp_path):
    again = tmp_path / "again.zip"
    said = stark_command("export", run, "--bundle", again).stdout
    assert again.read_bytes() == bundle.read_bytes()
    assert b"canary" not in again.read_bytes()
    done = stark_command("verify", bundle, *PRETEND)
    assert done.returncode == 0, done.stderr
    manifest = next(line.split()[-1] for line in done.stdout.splitlines() if "SHA-256" in line)
    assert manifest in said.replace("\n", " ")
    assert "The claim holds here" in done.stdout
    assert "another device" not in done.stdout
    assert "only as honest as that task" in done.stdout
    with zipfile.ZipFile(bundle) as archive:
        assert json.loads(archive.read("verified.json"))["timing"]["samples_ms"]


@pytest.mark.parametrize(("outcome", "said"), [("failed", "not correct here"), ("slower", "not faster")])
def test_a_claim_that_does_not_hold_is_exit_code_3(bundle, tmp_path, outcome, said):
    claimed = unpack(bundle.read_bytes())
    false = tmp_path / "false.zip"
    false.write_bytes(pack(replace(claimed, kernel_source=kernel_with(outcome))))
    done = stark_command("verify", false, *PRETEND)
    assert (done.returncode, said in done.stdout) == (3, True), done.stdout + done.stderr


def test_with_a_task_of_ones_own_no_untrusted_task_is_run(bundle, tmp_path):
    task = tmp_path / "mine.py"
    task.write_text(PRETEND_TASK + "# mine\n")
    done = stark_command("verify", bundle, "--task", task, *PRETEND)
    assert done.returncode == 0, done.stderr
    assert "differs from the bundle's" in done.stdout
    assert "honest" not in done.stdout


def test_what_is_no_bundle_is_exit_code_2_and_nothing_runs(bundle, tmp_path):
    changed = tmp_path / "changed.zip"
    changed.write_bytes(bundle.read_bytes().replace(b"ModelNew", b"ModelOld"))
    for file in (changed, tmp_path / "missing", tmp_path):
        done = stark_command("verify", file, "--evaluator", "no:such")
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    assert stark_command("export", tmp_path, "--bundle", tmp_path / "x").returncode == 7


def test_names_cannot_write_on_the_terminal(bundle, tmp_path):
    claimed = unpack(bundle.read_bytes())
    file = tmp_path / "names.zip"
    file.write_bytes(pack(replace(claimed, claim=replace(claimed.claim, task_name="a\x1b]0;title\x07b", made_at="\r"))))
    done = stark_command("verify", file, *PRETEND)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout


def test_a_kernel_no_run_made_is_judged_and_verified_for_real(tmp_path):
    task, kernel, file = tmp_path / "task.py", tmp_path / "kernel.py", tmp_path / "bundle.zip"
    task.write_text(TASK)
    kernel.write_text(KERNEL)
    done = stark_command(
        "judge", task, kernel, "--bundle", file, "--allow-weak-sandbox", "--set", "evaluation.rtol=0.01"
    )
    assert done.returncode == 0, done.stderr
    claimed: Bundle = unpack(file.read_bytes())
    assert (claimed.task_source, claimed.kernel_source, claimed.claim.rtol) == (TASK, KERNEL, 0.01)
    assert claimed.final.verified.seeds
    done = stark_command("verify", file, "--allow-weak-sandbox")
    assert done.returncode in (0, 3, 4), done.stderr  # it is correct; how fast, no test decides
    assert done.stdout.count("correct, ") == 4
    assert "isolation of the reference: " in done.stdout


# -- the referee of an untrusted task -------------------------------------------------------------------------------

TRIES = f"""
import os, socket, stat
{CHANNELS}
def refused(attempt):
    try:
        attempt()
    except OSError:
        return
    raise RuntimeError("it was possible")
"""

REFUSED = {
    "reading a file of the user's": "refused(lambda: open({secret!r}).read())",
    "writing next to it": "refused(lambda: open({secret!r} + '.more', 'w'))",
    "the network": "refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))",
    "other processes": "refused(lambda: open(f'/proc/{{os.getppid()}}/environ').read())",
}
FORGED = {
    "a link in place of the report": ("os.symlink({secret!r}, 'report.json')", "judged"),
    "a pipe in place of the report": ("os.mkfifo('report.json')", "judged"),
    "no report": ("pass", "judged"),
    "a report that contradicts itself": ("open('report.json', 'w').write('{{\"outcome\": \"ok\"}}')", "judged"),
    "a failure without a word": ("pass", "failed"),
    "nonsense": ("pass", "nonsense"),
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with running_worker(tmp_path_factory.mktemp("shared") / "cache") as worker:
        yield worker


@pytest.fixture
def secret(tmp_path_factory):
    file = tmp_path_factory.mktemp("home") / "secret"
    file.write_text("canary")
    return str(file)


@pytest.mark.parametrize("name", REFUSED)
def test_an_untrusted_task_is_confined(worker, secret, name):
    task = TASK + TRIES + REFUSED[name].format(secret=secret)
    request = replace(RIGHT, task_source=task, untrusted_task=True)
    report = worker.judge(request)
    assert report.outcome is Outcome.OK, report.log
    assert report.reference_isolation.level in (Level.STRONG, Level.STANDARD)
    assert worker.left() == (set(), set())


def test_an_ordinary_user_confines_it_too():
    def judged():
        with running_worker(Path(tempfile.mkdtemp()) / "cache") as worker:
            return worker.judge(replace(RIGHT, untrusted_task=True))

    report = as_ordinary_user(judged)
    assert report.outcome is Outcome.OK, report.log
    assert report.reference_isolation.level is Level.STANDARD


def test_without_being_asked_for_it_is_not(worker, secret):
    """So that the test above tests something."""
    task = TASK + TRIES + REFUSED["reading a file of the user's"].format(secret=secret)
    with pytest.raises(TaskFault, match="it was possible"):
        worker.judge(replace(RIGHT, task_source=task))


@pytest.mark.parametrize("name", FORGED)
def test_an_untrusted_task_that_speaks_for_the_referee_does_no_harm(worker, secret, name):
    does, says = FORGED[name]
    message = json.dumps({"did": says}).encode()
    says_it = f"[os.write(number, {message!r}) for number in channels()]\nimport time; time.sleep(60)"
    task = TASK + TRIES + does.format(secret=secret) + "\n" + says_it
    with pytest.raises((MachineryFault, ValueError)) as fault:
        worker.judge(replace(RIGHT, task_source=task, untrusted_task=True, limits=Limits(60.0, 60.0)))
    assert "canary" not in str(fault.value)
    assert worker.left() == (set(), set())
    assert worker.judge(RIGHT).outcome is Outcome.OK
