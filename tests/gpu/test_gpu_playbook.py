"""The playbook's Triton on a real GPU: every example task with all moves is judged correct by the worker.

Runs as the other tests here do, and needs pydantic besides, for the host part that writes the kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stark.models.playbook.moves import applicable
from stark.models.playbook.reading import read_task
from stark.models.playbook.writing import write_candidate
from stark.models.playbook.writing_triton import TRITON
from stark_worker.protocol import EvalReport, EvalRequest, Outcome, Target, from_json, to_json

TASKS = sorted((Path(__file__).parents[2] / "examples" / "tasks").glob("*.py"))


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_all_moves_together_are_correct(path):
    source = path.read_text()
    program = read_task(source)
    moves = frozenset(move.name for move in applicable(program, "triton"))
    request = EvalRequest(source, write_candidate(program, moves, TRITON), target=Target.TRITON)
    command = [sys.executable, "-m", "stark_worker", "judge"]
    done = subprocess.run(command, input=to_json(request), capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    report = from_json(EvalReport, done.stdout)
    assert report.outcome is Outcome.OK, report.log
