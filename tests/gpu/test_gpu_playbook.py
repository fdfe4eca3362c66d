"""The playbook's Triton on a real GPU: every example task with all moves is judged correct by the worker.

Runs as the other tests here do. It needs pydantic besides, for the host part that writes the kernels, and is left out
where that is missing; ``benchmarks/studies/playbook.py --write`` then writes them elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.request import EvalRequest, Limits, Target
from worker_fixture import running_worker

pytest.importorskip("pydantic")

from stark.models.playbook.codegen.candidate import write_candidate
from stark.models.playbook.codegen.triton import TRITON
from stark.models.playbook.moves import find_applicable
from stark.models.playbook.trace.program import read_task

TASKS = sorted((Path(__file__).parents[2] / "examples" / "tasks").glob("*.py"))
DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with running_worker(tmp_path_factory.mktemp("shared") / "cache", Target.TRITON) as worker:
        yield worker.judge


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_all_moves_together_are_correct(judge, path):
    source = path.read_text()
    program = read_task(source)
    moves = frozenset(move.name for move in find_applicable(program, "triton"))
    request = EvalRequest(
        source, write_candidate(program, moves, TRITON), target=Target.TRITON, limits=Limits(60.0, 60.0)
    )
    report = judge(request, DEADLINE_S)
    assert report.outcome is Outcome.OK, report.log
