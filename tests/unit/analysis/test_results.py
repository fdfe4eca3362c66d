"""The store of a benchmark and the report on it, with fakes in this process."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing, nullcontext
from dataclasses import replace

import pytest

import stark
from fakes import TASK, DriftingEvaluator, HashEvaluator, SoberEvaluator
from stark.analysis.results import read_results
from stark.bench.cell import GivenSource
from stark.bench.grid import judged_cells, make_grid, settings_factory, with_baselines
from stark.bench.runner import run_grid
from stark.core.task import Task
from stark.report.header import header_facts
from stark.report.kernelbench import write_eval_results
from stark.report.paper_tables import filled_tables
from stark.store.open import open_store

GOOD = "x = 3"  # HashEvaluator is content with it
OPTIONS = {"method": "stark", "roles": {"model": "fakes:PretendModel"}, "budget": {"attempts": 8}}


def searched(folder, evaluator, *sets, comment="", both_scores=True):
    """The results of one task that was searched on, by kind."""
    sets = [f"evaluation.evaluator=fakes:{evaluator}", *sets]
    cells = make_grid([Task("task", f"{comment}\n{TASK}")], ["reflexion"], [], 1, settings_factory(None, sets, OPTIONS))
    cells = with_baselines(cells, both_scores)
    asyncio.run(run_grid(cells, folder, 1, lambda cell, ending, standing: None, both_scores))
    return {run.kind: run for run in read_results(folder)}


def test_speed_ups_are_those_of_the_final_by_either_score(tmp_path):
    found = searched(tmp_path, "SoberEvaluator")
    assert (found["search"].speedup(), found["rescored"].speedup()) == (1.5, 4.0)
    assert found["search"].metrics.root_ms == 10.0
    assert found["search"].metrics.timed_in_turns
    assert found["search"].metrics.best_so_far_ms[-1] < 10.0, "the search believed in another time"


def test_a_kernel_that_does_not_hold_in_its_final_is_none_by_either_score(tmp_path):
    found = searched(tmp_path, "SoberEvaluator", comment="# brittle")
    assert found["search"].metrics.correct > 0
    assert [run.speedup() for run in found.values()] == [None, None]
    assert [run.complete for run in found.values()] == [True, True]
    assert len(found["rescored"].judgements) == 1, "there is nothing to judge by the other score"


def test_without_finals_the_best_time_of_the_search_counts(tmp_path):
    found = searched(tmp_path, "SoberEvaluator", "evaluation.final=false")
    for run in found.values():
        best = min(each.runtime_ms for each in run.judgements[1:] if each.runtime_ms)
        assert run.speedup() == pytest.approx(10.0 / best)
        assert not run.metrics.timed_in_turns


@pytest.mark.parametrize(
    ("sets", "more"),
    [
        ([], ""),
        (["precision=bf16", "atol=5"], " bf16, atol 5"),
        (["tf32=true", "rtol=0.001"], " TF32, rtol 0.001"),
        (["atol=0"], ", atol 0"),
    ],
)
def test_a_score_says_what_of_its_rules_is_not_their_own(tmp_path, sets, more):
    found = searched(tmp_path, "HashEvaluator", *(f"evaluation.{each}" for each in sets))
    assert {run.score for run in found.values()} == {f"verified{more}", f"kernelbench HEAD{more}"}
    assert all("torch.compile max-autotune" in run.baselines for run in found.values()), "by the same score"


def test_a_run_of_an_earlier_version_has_the_rules_own_precision(tmp_path):
    searched(tmp_path, "HashEvaluator", both_scores=False)
    with closing(open_store(tmp_path, write=True)) as store:
        for record in store.runs():
            evaluation = dict(record.settings["evaluation"])
            for name in ("precision", "atol", "rtol", "tf32"):
                del evaluation[name]
            store.amend(record.id, {**record.settings, "evaluation": evaluation})
    assert {run.score for run in read_results(tmp_path)} == {"verified"}


@pytest.mark.parametrize(("evaluator", "counts"), [("HashEvaluator", True), ("MortalEvaluator", False)])
@pytest.mark.parametrize("usd", [0.05, 10.0])
def test_a_single_run_counts_once_it_has_come_to_its_end(tmp_path, evaluator, counts, usd):
    """Whichever limit that was; one that died in its final has not."""
    (tmp_path / "task.py").write_text(TASK)
    options = {**OPTIONS, "budget": {"attempts": 30, "usd": usd}, "evaluation": {"evaluator": f"fakes:{evaluator}"}}
    with nullcontext() if counts else pytest.raises(RuntimeError, match="switched off"):
        stark.optimize(tmp_path / "task.py", run=tmp_path / "run", **options)
    (found,) = read_results(tmp_path / "run")
    assert found.complete is counts
    assert (found.metrics.attempts < 30) is (usd < 1)
    if counts:
        assert found.allowed_attempts == found.metrics.attempts


def test_evaluating_is_what_a_run_had_judged_itself(tmp_path, monkeypatch):
    """A twin is not judged again, the reference is everybody's, and a final is two evaluations of the search."""

    async def evaluate(self, request):
        return replace(await HashEvaluator.evaluate(self, request), duration_s=1.0)

    monkeypatch.setattr(SoberEvaluator, "evaluate", evaluate)
    found = searched(tmp_path, "SoberEvaluator")
    with closing(open_store(tmp_path, write=False)) as store:
        nodes = store.nodes(found["search"].run_id)
    own = [node for node in nodes if node.id and node.same_as is None and node.source is not None]
    assert found["search"].evaluation_s == len(own) + 2
    assert found["rescored"].evaluation_s == 0


def judged(folder, generations):
    """The results of two tasks that another tool was to make kernels for."""
    tasks = [Task(f"level1/{number}_Task", TASK, "", 1, number) for number in (1, 2)]
    settings = settings_factory(None, ["evaluation.evaluator=fakes:HashEvaluator"], {})("stark", 0, ())
    cells = judged_cells(tasks, generations, "theirs", settings)
    asyncio.run(run_grid(cells, folder, 1, lambda cell, ending, standing: None))
    return read_results(folder)


def test_a_task_another_tool_made_no_kernel_for_is_a_failed_one(tmp_path):
    results = judged(tmp_path / "store", {(1, 2): [GivenSource(1, "sample 0", GOOD)]})
    (table,) = (table for table in filled_tables(results) if table.name == "table-1")
    assert [(row["tasks"], row["success"]) for row in table.records()] == [(2, 0.5)] * 2, "by both scores"
    assert "theirs has no kernel for 1 tasks" in " ".join(header_facts(results))
    assert "level1/1_Task." in " ".join(header_facts(results))
    for file in write_eval_results(tmp_path / "out", results):
        content = json.loads(file.read_text())
        assert [content[number][0]["correctness"] for number in ("1", "2")] == [False, True]


def test_kernels_that_came_later_are_judged_by_the_next_start(tmp_path):
    given = [GivenSource(1, "sample 0", GOOD), GivenSource(2, "sample 1", "x = 1")]
    judged(tmp_path, {(1, 2): given[:1]})
    results = judged(tmp_path, {(1, 1): given[:1], (1, 2): given})
    assert [run.metrics.attempts for run in results] == [1, 1, 2, 2]
    assert not any(run.is_missing for run in results)


def test_a_baseline_of_a_slow_day_is_compared_with_the_reference_of_that_day(tmp_path, monkeypatch):
    sets = ["evaluation.evaluator=fakes:DriftingEvaluator"]
    cells = make_grid([Task("task", TASK)], ["reflexion"], [], 1, settings_factory(None, sets, OPTIONS))
    asyncio.run(run_grid(cells, tmp_path, 1, lambda cell, ending, standing: None))
    monkeypatch.setattr(DriftingEvaluator, "slower", 1.5)
    asyncio.run(run_grid(with_baselines(cells, False), tmp_path, 1, lambda cell, ending, standing: None))
    (found,) = read_results(tmp_path)
    assert found.speedup() == pytest.approx(4.0)
    assert found.speedup("torch.compile default") == pytest.approx(2.0)


def test_a_baseline_that_fails_is_kept_with_its_reason(tmp_path):
    found = searched(tmp_path, "PartialEvaluator", both_scores=False)["search"]
    assert found.failed_baselines == {"torch.compile default": "compile error"}
    assert found.baselines.keys() == {"eager", "torch.compile max-autotune"}
