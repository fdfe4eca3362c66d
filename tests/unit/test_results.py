"""What a benchmark leaves in its store, and what a report takes from it; with the stand-ins, in this process."""

from __future__ import annotations

import asyncio

import pytest

from pretend import TASK
from stark.bench import run_grid
from stark.grid import make_grid, settings_maker, with_baselines
from stark.results import read_results
from stark.task import Task

OPTIONS = {"roles": {"model": "pretend:PretendModel"}, "budget": {"attempts": 8}}


def searched(folder, evaluator, *sets, comment="", both_scores=True):
    """The results of one task that was searched on, by kind."""
    sets = [f"evaluation.evaluator=pretend:{evaluator}", *sets]
    cells = make_grid([Task("task", f"{comment}\n{TASK}")], ["reflexion"], [], 1, settings_maker(None, sets, OPTIONS))
    cells = with_baselines(cells, both_scores)
    asyncio.run(run_grid(cells, folder, 1, lambda cell, ending, standing: None, both_scores))
    return {run.kind: run for run in read_results(folder)}


def test_speed_ups_are_those_of_the_final_by_either_score(tmp_path):
    found = searched(tmp_path, "SoberEvaluator")
    assert (found["search"].speedup(), found["rescored"].speedup()) == (1.5, 4.0)
    assert found["search"].metrics.root_ms == 10.0
    assert found["search"].metrics.in_turns
    assert found["search"].metrics.so_far_ms[-1] < 10.0, "the search believed in another time"


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
        assert not run.metrics.in_turns
