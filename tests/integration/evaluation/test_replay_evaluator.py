"""A stored run, played again without the machine that judged it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace

import pytest

import stark
from fakes import TASK, HashEvaluator
from stark.analysis.results import read_results
from stark.bench.grid import make_grid, settings_factory
from stark.bench.runner import run_grid
from stark.core.errors import EvaluatorError
from stark.core.task import Task
from stark.store.lookup import load_reports, load_timings
from stark.store.open import open_store
from stark_worker.protocol.report import Timing
from stark_worker.protocol.request import Entry, Score

OPTIONS = {"roles": {"model": "fakes:PretendModel"}, "budget": {"attempts": 6}}


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(TASK)
    return path


@pytest.fixture
def stored(task, tmp_path):
    stark.optimize(task, run=tmp_path / "stored", evaluation={"evaluator": "fakes:HashEvaluator"}, **OPTIONS)
    return tmp_path / "stored"


def nodes(folder):
    with closing(open_store(folder, write=False)) as store:
        return store.nodes(store.runs()[0].id)


def test_the_same_search_gets_the_same_reports(task, stored, tmp_path):
    replay = {"evaluator": "replay", "folder": str(stored)}
    again = stark.optimize(task, run=tmp_path / "again", evaluation=replay, **OPTIONS)
    assert nodes(tmp_path / "again") == nodes(stored)
    assert again.best == min((node for node in nodes(stored)[1:] if node.runtime_ms), key=lambda node: node.runtime_ms)


def test_an_unknown_candidate_is_a_fault_of_the_replay(task, stored, tmp_path):
    replay = {"evaluator": "replay", "folder": str(stored)}
    with pytest.raises(EvaluatorError, match="holds no report on this candidate"):
        stark.optimize(task, run=tmp_path / "other", seed=7, evaluation=replay, method="sampling", **OPTIONS)


class TwoClocks(HashEvaluator):
    """Says of every source another time by the score ``kernelbench``."""

    async def evaluate(self, request):
        report = await super().evaluate(request)
        if report.timing is None or request.score is Score.VERIFIED:
            return report
        return replace(report, timing=Timing((report.timing.median_ms * 2,)))


def test_a_store_with_both_scores_gives_each_its_own_report(task, tmp_path):
    options = {"roles": {"model": "fakes:PretendModel"}, "evaluation": {"evaluator": f"{__name__}:TwoClocks"}}
    settings_of = settings_factory(None, [], {**options, "budget": {"attempts": 4}})
    cells = make_grid([Task("task", TASK)], ["sampling"], [], 1, settings_of)
    ignored = lambda cell, ending, standing: None  # noqa: E731
    asyncio.run(run_grid(cells, tmp_path / "store", 1, ignored, both_scores=True))
    _, judged = load_reports(str(tmp_path / "store"))
    medians = {
        key[3]: report.timing.median_ms for key, report in judged.items() if key[2] == Entry.REFERENCE and not key[4]
    }
    assert medians == {Score.VERIFIED: 10.0, Score.KERNELBENCH: 20.0}
    (theirs,) = [run for run in read_results(tmp_path / "store") if run.score.startswith("kernelbench")]
    assert load_timings(tmp_path / "store", [theirs.run_id])[theirs.run_id, 0] == Timing((20.0,))


def test_a_final_is_given_by_the_score_it_is_asked_for(task, tmp_path):
    clocks = {"evaluator": f"{__name__}:TwoClocks"}
    first = stark.optimize(task, run=tmp_path / "stored", evaluation=clocks, **OPTIONS)
    replay = {"evaluator": "replay", "folder": str(tmp_path / "stored")}
    again = stark.optimize(task, run=tmp_path / "again", evaluation=replay, **OPTIONS)
    assert again.final == first.final
    assert again.final.kernelbench.timing.median_ms == 2 * again.final.verified.timing.median_ms


def test_a_score_that_is_not_stored_is_refused(task, stored, tmp_path):
    replay = {"evaluator": "replay", "folder": str(stored), "score": "kernelbench"}
    with pytest.raises(EvaluatorError, match="holds no report on this candidate by the score kernelbench"):
        stark.optimize(task, run=tmp_path / "other", evaluation=replay, **OPTIONS)
