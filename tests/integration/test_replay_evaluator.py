"""A stored run, played again without the machine that judged it."""

from __future__ import annotations

from contextlib import closing

import pytest

import stark
from pretend import TASK
from stark.errors import EvaluatorError
from stark.store import open_store

OPTIONS = {"roles": {"model": "pretend:PretendModel"}, "budget": {"attempts": 6}}


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(TASK)
    return path


@pytest.fixture
def stored(task, tmp_path):
    stark.optimize(task, run=tmp_path / "stored", evaluation={"evaluator": "pretend:HashEvaluator"}, **OPTIONS)
    return tmp_path / "stored"


def nodes(folder):
    with closing(open_store(folder, write=False)) as store:
        return store.nodes(store.runs()[0].id)


def test_the_same_search_gets_the_same_reports(task, stored, tmp_path):
    replay = {"evaluator": "replay", "folder": str(stored)}
    again = stark.optimize(task, run=tmp_path / "again", evaluation=replay, **OPTIONS)
    assert nodes(tmp_path / "again") == nodes(stored)
    assert again.best == min((node for node in nodes(stored)[1:] if node.runtime_ms), key=lambda node: node.runtime_ms)


def test_a_candidate_nobody_tried_is_a_fault_of_the_replay(task, stored, tmp_path):
    replay = {"evaluator": "replay", "folder": str(stored)}
    with pytest.raises(EvaluatorError, match="never judged this candidate"):
        stark.optimize(task, run=tmp_path / "other", seed=7, evaluation=replay, method="sampling", **OPTIONS)
