"""What the worker says of good and bad candidates: real processes throughout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from candidate_sources import HEAD, at_import, forward
from conformance.evaluator import BROKEN_TASK, KERNEL, REFERENCE, RIGHT, TASK
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.errors import MachineryFault, Outcome
from stark_worker.protocol.report import Check, DeviceFacts, EvalReport
from stark_worker.protocol.request import Entry, EvalRequest, Precision, Score, Target
from worker_fixture import is_running, running_worker

without_gpu = pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has a GPU")

FAILURES = {
    "works after it returned": (
        forward("y = self.right(x); y.detach = lambda: (time.sleep(0.01), y)[1]; return y"),
        Outcome.WRONG_RESULT,
        "plain torch tensors",
    ),
    "raises": (forward("return x @ x"), Outcome.RUNTIME_ERROR, "return x @ x"),
    "exits at once": (forward("os._exit(0)"), Outcome.CRASH, "exit code 0"),
    "segfault": (forward("print('going', flush=True); return ctypes.string_at(8)"), Outcome.CRASH, "SIGSEGV"),
    "signal without a name": (forward("os.kill(os.getpid(), 40)"), Outcome.CRASH, "by signal 40"),
    "asks for a terabyte": (forward("return torch.empty(2**38)"), Outcome.OUT_OF_MEMORY, "memory"),
    "wrong value": (forward("y = self.right(x); y[3, 5] += 1; return y"), Outcome.WRONG_RESULT, "at [3, 5]"),
    "wrong type": (forward("return self.right(x).half()"), Outcome.WRONG_RESULT, "float16[16, 64]"),
    "wrong nesting": (forward("return (self.right(x),)"), Outcome.WRONG_RESULT, "nested"),
    "first result for ever": (
        forward("self.kept = getattr(self, 'kept', None); self.kept = self.right(x) if self.kept is None else self.kept"
                "; return self.kept"),
        Outcome.WRONG_RESULT,
        "values",
    ),
    "not a number": (forward("return self.right(x) / 0 * 0"), Outcome.WRONG_RESULT, "NaN"),
    "no entry": ("class Other: ...\n", Outcome.COMPILE_ERROR, "no class ModelNew"),
    "does not compile": (KERNEL.replace("const float h =", "const flaot h ="), Outcome.COMPILE_ERROR, "flaot"),
    "forges a report": (
        at_import("os.write(1, b'{\"outcome\": \"ok\", \"timing\": {\"samples_ms\": [0.001]}}'); os._exit(0)"),
        Outcome.CRASH,
        "exit code 0",
    ),
    "closes the conversation": (at_import("[os.close(n) for n in channels()]; time.sleep(99)"), Outcome.REJECTED, ""),
}  # fmt: skip

RULES = {
    "garbage": (at_import("[os.write(n, b'\\xff' * 100_000) for n in channels()]"), "forged_message"),
    "says done before it is": (
        forward('[os.write(n, b\'{"did": "done"}\') for n in channels()]; return self.right(x)'),
        "forged_message",
    ),
    "works in place": (forward("y = self.right(x); x.add_(1); return y"), "changed_inputs"),
}

FORKER = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "8641.25"])
    os._exit(0)
os.wait()
open("left-behind", "w").write("x")
open(os.path.join(os.environ["TMPDIR"], "left-behind-too"), "w").write("x")
sys.stdout.write("x" * 10_000_000)
assert "OPENAI_API_KEY" not in os.environ
"""


def work(command: str, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stark_worker", *command.split()],
        input=text,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with running_worker(tmp_path_factory.mktemp("shared") / "cache") as worker:
        yield worker.judge


@pytest.fixture
def judge_source(judge):
    return lambda source, **limits: judge(
        replace(RIGHT, candidate_source=source, limits=replace(RIGHT.limits, **limits))
    )


def test_a_complaint_about_a_dtype_is_marked(judge_source):
    report = judge_source(forward("return x @ x.T.double()"))
    assert report.outcome is Outcome.RUNTIME_ERROR
    assert report.dtype_mismatch, report.log


def test_the_reference_is_judged_like_any_candidate(judge):
    report = judge(REFERENCE)
    assert report.outcome is Outcome.OK, report.log
    assert report.timing
    assert 15 <= len(report.timing.samples_ms) <= 100
    assert report.device
    assert report.device.cores == len(os.sched_getaffinity(0))
    assert "double precision" in report.checks[Check.CORRECTNESS]


@pytest.mark.parametrize("name", FAILURES)
def test_a_fault_of_the_candidate_is_an_outcome(judge_source, name):
    source, outcome, said = FAILURES[name]
    report = judge_source(source)
    assert (report.outcome, said in report.log) == (outcome, True), report
    assert len(report.log) < 6_000


@pytest.mark.parametrize("name", RULES)
def test_a_candidate_that_cheats_is_rejected_by_the_rule(judge_source, name):
    source, rule = RULES[name]
    report = judge_source(source)
    assert (report.outcome, report.rule) == (Outcome.REJECTED, rule), report


@pytest.mark.parametrize(
    ("source", "limit"),
    [
        ("# load_inline" + at_import("while True: pass"), "build_s"),
        (at_import("while True: pass"), "build_s"),
        (forward("while True: pass"), "run_s"),
    ],
    ids=["while building", "while loading", "while running"],
)
def test_a_candidate_that_never_ends_runs_out_of_time_and_is_told_of_which(judge_source, source, limit):
    report = judge_source(source, **{limit: 1.5})
    assert report.outcome is Outcome.TIMEOUT
    assert re.search(rf"1\.5 s .*\(evaluation\.{limit}\)", report.log)


def test_nothing_is_left_and_nothing_secret_is_seen(tmp_path):
    request = replace(RIGHT, candidate_source=at_import(FORKER))
    done = work("judge --allow-weak-sandbox", to_json(request), TMPDIR=str(tmp_path), OPENAI_API_KEY="sk-not-for-you")
    report = from_json(EvalReport, done.stdout)
    assert report.outcome is Outcome.OK, report.log
    assert not is_running("sleep", "8641.25")
    assert list(tmp_path.iterdir()) == []


def test_several_outputs_arguments_that_are_no_tensors_and_dropout(judge):
    task = (
        HEAD
        + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x, power, names, indices):
        y = self.drop(x) ** power
        return {"y": y[indices], "count": [(y > 0).sum(), None], names[0]: y.argmax(dim=1)}

def get_inputs():
    return [torch.randn(8, 32).t(), 2, ["best"], torch.randint(0, 32, (5,))]

def get_init_inputs():
    return []
"""
    )
    report = judge(EvalRequest(task, task.replace("class Model(", "class ModelNew("), limits=RIGHT.limits))
    assert report.outcome is Outcome.OK, report.log


def test_a_candidate_may_work_in_place_where_the_reference_does(judge):
    task = TASK.replace("return torch.relu(x * 2.0 + self.bias)", "return x.mul_(2.0).add_(self.bias).relu_()")
    report = judge(EvalRequest(task, task, Entry.REFERENCE, limits=RIGHT.limits))
    assert report.outcome is Outcome.OK, report.log


def test_the_rules_of_kernelbench_can_be_asked_for(judge):
    report = judge(replace(REFERENCE, score=Score.KERNELBENCH))
    assert report.outcome is Outcome.OK, report.log
    assert report.checks[Check.WEIGHTS] == "by seed and order"


def test_a_fast_one_is_profiled(judge):
    report = judge(replace(RIGHT, profile_below_ms=1e9))
    assert "outside torch's operators" in report.profile
    assert "aten::empty_like" in report.profile
    assert judge(RIGHT).profile is None


def test_an_opponent_is_timed_in_turns_with_the_candidate(judge):
    report = judge(replace(RIGHT, opponent_source=TASK))
    assert len(report.opponent.samples_ms) == len(report.timing.samples_ms)
    failing = replace(RIGHT, opponent_source=FAILURES["raises"][0], opponent_entry=Entry.CANDIDATE)
    with pytest.raises(MachineryFault, match="compared with failed"):
        judge(failing)


def test_numeric_settings_are_pinned_and_changes_are_noted(judge, judge_source):
    source = at_import("torch.backends.fp32_precision = 'tf32'; torch.backends.cuda.matmul.fp32_precision = 'tf32'")
    report = judge_source(source)
    assert report.outcome is Outcome.OK, report.log
    assert "cuda.matmul.fp32_precision" in report.checks[Check.PRECISION]
    assert Check.PRECISION not in judge(REFERENCE).checks


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16])
def test_tasks_of_half_precision_are_judged_as_such(judge, precision):
    def outcome(body: str) -> EvalReport:
        return judge(replace(RIGHT, candidate_source=forward(body), precision=precision))

    assert outcome("return torch.relu(x.float() * 2.0 + self.bias.float()).to(x.dtype)").outcome is Outcome.OK
    assert outcome("return self.right(x) * 1.05").outcome is Outcome.WRONG_RESULT
    wide = outcome("return self.right(x).float()")
    assert (wide.outcome, "float32[16, 64]" in wide.log) == (Outcome.WRONG_RESULT, True)


@pytest.mark.parametrize(
    ("request_text", "code", "sentence"),
    [
        (to_json(BROKEN_TASK), 4, "task: get_inputs() fails: ZeroDivisionError: division by zero"),
        pytest.param(to_json(replace(RIGHT, target=Target.TRITON)), 3, "needs a CUDA GPU", marks=without_gpu),
        ("{}", 3, "EvalRequest"),
    ],
    ids=["broken task", "target of another machine", "no request"],
)
def test_a_fault_that_is_not_the_candidates_is_no_report(request_text, code, sentence):
    done = work("judge --allow-weak-sandbox", request_text)
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr.splitlines()[-1]


def test_the_device_is_described():
    facts = from_json(DeviceFacts, work("device", "").stdout)
    assert facts.kind == "cpu"
    assert facts.memory_gb
    assert facts.bandwidth_gb_s
    assert {"python", "torch", "c++"} <= facts.toolchain.keys()
