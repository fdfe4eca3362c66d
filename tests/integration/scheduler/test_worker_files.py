"""What a person asks of a machine that has the worker alone: real processes, files in, words or JSON out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from conformance.evaluator import TASK
from stark_worker.protocol.baselines import COMPILED, EAGER
from stark_worker.protocol.codec import from_json
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import Check, EvalReport

RIGHT = TASK.replace("class Model(", "class ModelNew(")
FILES = {
    "task.py": TASK,
    "right.py": RIGHT,
    "wrong.py": RIGHT.replace("2.0", "2.1"),
    "loud.py": "raise ValueError('\\x1b[2J gone \\N{SNOWMAN}')",
    "latin.py": "",
    "broken.py": TASK.replace("torch.randn(16, 64)", "1 / 0"),
}


@pytest.fixture
def work(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stark_worker", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    return run


def judge(work, *words: str) -> subprocess.CompletedProcess[str]:
    return work("judge", "task.py", *words, "--allow-weak-sandbox")


def test_a_right_kernel_is_told_with_its_time_its_labels_and_its_checks(work):
    done = judge(work, "right.py")
    assert done.returncode == 0, done.stderr
    told = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert told["kernel"].endswith("x")
    assert told["reference"].endswith(" ms")
    assert "library only" in told["kernels"]
    assert told["isolation"]
    assert told["median"].startswith("between ")


def test_a_task_that_tests_nothing_is_told(work, tmp_path):
    (tmp_path / "task.py").write_text(TASK.replace("x * 2.0 + self.bias", "x * 0.0 - 1.0"))
    assert "warning  The task tests nothing" in judge(work, "right.py").stdout


def test_a_wrong_one_is_told_with_the_reason_and_another_exit_code(work):
    done = judge(work, "wrong.py")
    assert done.returncode == 1, done.stderr
    assert "kernel  wrong result" in done.stdout
    assert "expected" in done.stdout


def test_the_report_comes_as_json_by_either_score(work):
    done = judge(work, "right.py", "--json", "--score", "kernelbench")
    report = from_json(EvalReport, done.stdout)
    assert report.outcome is Outcome.OK, report.log
    assert report.checks[Check.WEIGHTS] == "by seed and order"
    assert report.labels


def test_what_a_candidate_says_is_nothing_that_a_terminal_obeys(work):
    done = judge(work, "loud.py")
    assert (done.returncode, "\x1b" in done.stdout) == (1, False)
    assert "gone \N{SNOWMAN}" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["task.py", "missing.py"], 2, "missing.py cannot be read"),
        (["task.py", "latin.py"], 2, "latin.py cannot be read"),
        (["task.py"], 2, "a task and a candidate"),
        (["broken.py", "right.py", "--allow-weak-sandbox"], 4, "task: get_inputs() fails"),
    ],
    ids=["missing", "not text", "one file", "broken task"],
)
def test_what_cannot_be_judged_is_told_in_a_sentence(work, words, code, sentence):
    done = work("judge", *words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert sentence in done.stderr.splitlines()[-1]


def test_baselines_are_told_in_words(work):
    done = work("baseline", "task.py", "--only", "eager", "--allow-weak-sandbox")
    assert done.returncode == 0, done.stderr
    line, *warnings = done.stdout.splitlines()
    assert all("busy" in warning for warning in warnings), "as it may be here"
    assert line.startswith(EAGER)
    assert line.endswith(" ms")


def test_baselines_come_as_json_one_a_line(work):
    done = work("baseline", "task.py", "--only", "eager", "default", "--json", "--allow-weak-sandbox")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["baseline"] for each in told] == [EAGER, COMPILED], done.stderr
    for each in told:
        report = from_json(EvalReport, json.dumps(each["report"]))
        assert report.outcome is Outcome.OK, report.log
