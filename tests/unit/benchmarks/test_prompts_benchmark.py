"""benchmarks/studies/prompts.py on a small run that stands for the recorded ones, which are not part of the project."""

from __future__ import annotations

import importlib.util
import sys

import pytest

import stark
from fakes import TASK
from paths import ROOT
from stark.core.tree import Attempt, Node, Plan, Role
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing

SCRIPT = ROOT / "benchmarks" / "studies" / "prompts.py"
FAKES = {"roles": {"model": "fakes:PretendModel"}, "evaluation": {"evaluator": "fakes:HashEvaluator", "target": "cuda"}}


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("prompts_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["prompts_benchmark"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "task.py").write_text(TASK)
    options = {**FAKES, "budget": {"attempts": 10}, "jobs": 2}
    stark.optimize(folder / "task.py", run=folder / "small-stark", method="stark", **options)
    stark.optimize(folder / "task.py", run=folder / "small-sampling", method="sampling", **options)
    (found,) = study.load_runs(folder)
    return found


def test_every_planned_attempt_is_rebuilt_from_the_tree_its_planner_saw(study, run):
    rows = study.rebuild(run)
    assert [row.number for row in rows] == sorted(node.id for node in run.nodes if node.role is Role.CODE)
    figures = study.summarise(rows)
    assert figures["most_tokens_beyond_sources"] <= 4_000
    assert figures["most_tokens_of_a_plan"] <= 1_500
    assert set(figures["missing_facts"]) <= {"noise", "flags", "two clocks", "bandwidth is measured", "memory in GiB"}


def test_a_recorded_scaffold_becomes_line_ranges(study):
    source = "a = 1\nb = 2\nc = 3\nd = 4\n"
    scaffold = "a = 1\n# <<<IMPROVE BEGIN>>>\n# advice\nb = 2\nc = 3\n# <<<IMPROVE END>>>\nd = 4\n"
    base = Node(1, 0, Attempt(Role.CODE, source, EvalReport(Outcome.OK, Timing((1.0,)))))
    assert study.marked_ranges(source, scaffold) == [(2, 3)]
    plan, written = study.rewrite_plan(Plan("Join b and c.", scaffold), base)
    assert "Regions: 2-3\n" in written
    assert plan.scaffold.count("IMPROVE") == 2


def test_stops_are_replayed_in_the_order_of_landing(study, run):
    assert study.replay_stops(run)["attempts"] <= len(run.nodes) - 1
    first = next(place for place, node in enumerate(run.nodes) if place and not node.failed)
    stopped = study.replay_stops(run, bound_ms=1e9)
    assert (stopped["attempts"], stopped["reason"]) == (first, "bound")
