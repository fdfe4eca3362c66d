"""benchmarks/studies/playbook.py: which state of the code each row was measured at, and what its means go over."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from paths import ROOT
from stark_worker.protocol.baselines import COMPILED, EAGER
from stark_worker.protocol.codec import to_json
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing

SCRIPT = ROOT / "benchmarks" / "studies" / "playbook.py"
TIMES = {EAGER: 6.0, COMPILED: 3.0, "ours": 2.0}


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.setenv("STARK_COMMIT", "new")
    spec = importlib.util.spec_from_file_location("playbook_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_row(benchmark, task: str, **changes) -> dict:
    reports = {name: EvalReport(Outcome.OK, Timing((ms,))) for name, ms in TIMES.items()}
    return {**benchmark.row(task, reports, commit="new"), **changes}


def test_a_row_that_was_measured_earlier_keeps_its_commit(benchmark, tmp_path, capsys):
    task = ROOT / "examples" / "tasks" / "rms_norm.py"
    kept = a_row(benchmark, "rms_norm", commit="old")
    (tmp_path / "row.json").write_text(json.dumps(kept))
    rows = [benchmark.measure(task, tmp_path, 1), a_row(benchmark, "softmax_rows")]
    assert [each["commit"] for each in rows] == ["old", "new"]
    benchmark.show(rows)
    old, new = capsys.readouterr().out.splitlines()[1:3]
    assert old.startswith("rms_norm")
    assert old.endswith("at commit old")
    assert "commit" not in new
    del kept["commit"]
    (tmp_path / "row.json").write_text(json.dumps(kept))
    assert benchmark.measure(task, tmp_path, 1)["commit"] == "unknown", "written before rows carried one"


def test_a_saved_file_says_over_how_many_tasks_each_mean_goes(benchmark, tmp_path, monkeypatch, capsys):
    answers = {}
    for task in ("rms_norm", "softmax_rows"):
        for name, ms in {EAGER: 6.0, COMPILED: 3.0, "fuse": 2.0}.items():
            failed = name == COMPILED and task == "rms_norm"
            report = EvalReport(Outcome.COMPILE_ERROR) if failed else EvalReport(Outcome.OK, Timing((ms,)))
            answers[f"{task}--{name.replace(' ', '_')}.json"] = {"report": json.loads(to_json(report))}
    file = tmp_path / "playbook-answers.json"
    file.write_text(json.dumps({"device": {"name": "a GPU"}, "commit": "old", "answers": answers}))
    monkeypatch.setenv("STARK_RESULTS", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["playbook.py", "--target", "triton", "--collect", str(file), "--save"])
    benchmark.main()
    saved = json.loads((tmp_path / "playbook-triton.json").read_text())
    assert saved["geometric_mean"] == pytest.approx({EAGER: 3.0, COMPILED: 1.5})
    assert saved["geometric_mean_tasks"] == {EAGER: 2, COMPILED: 1}
    assert (saved["commit"], [each["commit"] for each in saved["rows"]]) == ("new", ["old", "old"])
    assert "over 1 of 2 tasks" in capsys.readouterr().out


def test_requests_for_a_worker_elsewhere_say_which_code_wrote_them(benchmark, tmp_path):
    benchmark.write(tmp_path, "triton", [ROOT / "examples" / "tasks" / "rms_norm.py"])
    (tmp_path / "device.json").write_text("{}")
    assert benchmark.answers_in(tmp_path)["commit"] == "new"
