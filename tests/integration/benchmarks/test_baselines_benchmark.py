"""benchmarks/studies/baselines.py: chunks that resume, deadlines, and what is admitted or marked."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.evaluator import TASK
from paths import ROOT
from stark.core.task import Task
from stark_worker.protocol.baselines import BASELINES, EAGER
from stark_worker.protocol.errors import MachineryFault, Outcome, TaskFault
from stark_worker.protocol.report import EvalReport, Timing
from stark_worker.protocol.request import Entry, EvalRequest, KernelBenchVersion, Score, Target

SCRIPT = ROOT / "benchmarks" / "studies" / "baselines.py"
V01 = KernelBenchVersion.V01
LIKE = EvalRequest("", "", target=Target.CPU)
OK = EvalReport(Outcome.OK, Timing((1.0, 2.0, 3.0)))


@pytest.fixture(scope="module")
def baselines():
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        spec = importlib.util.spec_from_file_location("baselines_benchmark", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(SCRIPT.parent))


class Judge:
    """A worker that says what it was told to, in order: a report, a fault, or nothing for ever."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def __call__(self, request):
        self.rules = (request.score, request.kernelbench_version, request.tf32)
        self.asked.append((request.entry, 'mode="max-autotune"' in request.candidate_source))
        answer = self.answers.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer


def work(baselines, judge, rows, names=("one",), seconds=100.0, deadline_s=50.0, like=LIKE):
    session = baselines.Session(judge, like, seconds, deadline_s, rows)
    return asyncio.run(session.work([Task(name, TASK) for name in names]))


def test_every_baseline_is_judged_once(baselines):
    judge, rows = Judge(OK, OK, OK), {}
    assert work(baselines, judge, rows)
    assert judge.asked == [(Entry.REFERENCE, False), (Entry.CANDIDATE, False), (Entry.CANDIDATE, True)]
    assert [rows["one"][name]["median_ms"] for name in BASELINES] == [2.0, 2.0, 2.0]
    assert rows["one"]["verdict"] == "admitted"
    assert work(baselines, Judge(), rows)  # nobody is asked again


def test_a_call_whose_time_is_over_blames_nobody_and_the_next_one_goes_on(baselines):
    rows = {}
    assert not work(baselines, Judge(OK, None), rows, seconds=0.2, deadline_s=10.0)
    assert set(rows["one"]) == {EAGER, "verdict"}
    assert not work(baselines, Judge(), rows, seconds=0.0)
    judge = Judge(OK, OK)
    assert work(baselines, judge, rows)
    assert [entry for entry, _ in judge.asked] == [Entry.CANDIDATE, Entry.CANDIDATE]


def test_a_deadline_is_reported_as_such_and_not_tried_again(baselines):
    """Whether the worker says so, with what the baseline was at, or nobody says anything."""
    late, rows = EvalReport(Outcome.TIMEOUT, log="The candidate did not finish in time: AUTOTUNE convolution"), {}
    assert work(baselines, Judge(OK, late, None), rows, deadline_s=0.1)
    assert rows["one"][BASELINES[1]].items() >= {"outcome": "timeout", "why": late.log}.items()
    assert rows["one"][BASELINES[2]].items() >= {"outcome": "timeout", "why": "not judged within 0 s"}.items()
    assert work(baselines, Judge(), rows)


def test_a_fault_of_the_machine_is_tried_again(baselines):
    rows = {}
    assert not work(baselines, Judge(MachineryFault("the driver is gone"), OK, OK, OK), rows, names=("one", "two"))
    assert rows["one"].keys() == {EAGER, "verdict"}
    assert (rows["one"][EAGER]["why"], rows["one"]["verdict"]) == ("the driver is gone", "not known yet")
    assert rows["two"]["verdict"] == "admitted"
    assert work(baselines, Judge(OK, OK, OK), rows, names=("one", "two"))
    assert rows["one"]["verdict"] == "admitted"


def test_a_task_is_marked_with_why(baselines):
    degenerate = EvalReport(Outcome.OK, OK.timing, degenerate="Zeros are accepted.")
    judge = Judge(degenerate, OK, OK, TaskFault("forward() fails"), EvalReport(Outcome.OUT_OF_MEMORY, log="too large"))
    rows = {}
    assert work(baselines, judge, rows, names=("zeros", "broken", "large"))
    assert rows["zeros"]["verdict"] == "marked: Zeros are accepted."
    assert rows["broken"]["verdict"].startswith("marked: its own model does not run")
    assert rows["large"][EAGER]["outcome"] == "out_of_memory"
    assert baselines.summary(rows)[0] == "3 of 3 tasks: 0 admitted, 3 marked"


def test_every_figure_keeps_its_rules_and_the_state_of_the_code_it_is_from(baselines, monkeypatch):
    like = replace(LIKE, target=Target.CUDA, score=Score.KERNELBENCH, kernelbench_version=V01, tf32=True)
    rows, judge = {}, Judge(OK, None)
    monkeypatch.setenv("STARK_COMMIT", "earlier")
    assert not work(baselines, judge, rows, seconds=0.2, deadline_s=10.0, like=like)
    assert judge.rules == (Score.KERNELBENCH, V01, True)
    monkeypatch.setenv("STARK_COMMIT", "later")
    assert work(baselines, Judge(OK, OK), rows, like=like)
    found = [rows["one"][name] for name in BASELINES]
    assert [each["commit"] for each in found] == ["earlier", "later", "later"]
    assert {(each["score"], each["tf32"]) for each in found} == {("kernelbench v0.1", True)}
    assert all("T" in each["date"] for each in found)


def test_a_file_is_not_mixed_with_other_rules(baselines):
    now = {"device": "a GPU", **baselines.rules(replace(LIKE, score=Score.KERNELBENCH))}
    baselines.check_kept({"device": "a GPU", "score": "kernelbench HEAD", "tf32": False}, now, Path("kept.json"))
    for kept in ({"device": "another GPU", "score": "kernelbench HEAD"}, {"device": "a GPU"}):
        with pytest.raises(SystemExit, match=r"kept\.json was measured with (device another|score verified)"):
            baselines.check_kept(kept, now, Path("kept.json"))


@pytest.mark.slow
def test_the_script_judges_for_real_and_keeps_what_it_has(tmp_path):
    tasks, kept = tmp_path / "tasks", tmp_path / "kept.json"
    tasks.mkdir()
    (tasks / "a_broken.py").write_text(TASK.replace("def forward(self, ", "def forward(self, another, "))
    (tasks / "b_works.py").write_text(TASK)
    words = ["--tasks", tasks, "--target", "cpu", "--seconds", "15", "--deadline", "15", "--save", kept]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    content = json.loads(kept.read_text())
    assert (content["score"], content["tf32"], "commit" in content) == ("verified", False, False)
    rows = content["tasks"]
    assert rows["b_works"][EAGER]["score"] == "verified"
    assert rows["a_broken"][EAGER]["outcome"] == "broken task"
    assert rows["b_works"]["verdict"] == "admitted"
    assert rows["b_works"][EAGER]["median_ms"] > 0


def test_a_wrong_path_is_one_sentence(tmp_path):
    words = [sys.executable, SCRIPT, "--kernelbench", tmp_path, "--subset", "representative"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, "is not a KernelBench checkout" in done.stderr) == (1, True)
    assert "Traceback" not in done.stderr
