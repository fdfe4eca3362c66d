"""The folder evaluator with real worker processes: two sides that know nothing but the folder."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from stark.errors import EvaluatorError, TaskError, UsageError
from stark.evaluation.folder import FolderEvaluator
from stark.settings import EvaluationSettings
from stark_worker.protocol import EvalRequest, Outcome

SOURCES = Path(__file__).parents[2] / "src"

TASK = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""
RIGHT = TASK.replace("class Model(", "class ModelNew(")
WRONG = RIGHT.replace("+ 1", "+ 1.5")


@contextmanager
def worker(folder: Path):
    command = [sys.executable, "-m", "stark_worker", "serve", str(folder), "--allow-weak-sandbox"]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(SOURCES)}, start_new_session=True)
    try:
        yield process
    finally:
        (folder / "stop").touch()
        process.wait(60)


def evaluator(folder: Path, patience_s: float = 60.0) -> FolderEvaluator:
    return FolderEvaluator(EvaluationSettings(folder=str(folder), patience_s=patience_s))


def evaluate(folder: Path, *sources: str, task: str = TASK):
    async def all_at_once():
        async with evaluator(folder) as judge:
            return await asyncio.gather(*(judge.evaluate(EvalRequest(task, source)) for source in sources))

    return asyncio.run(all_at_once())


def wait_for(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_requests_are_answered_and_nothing_is_left(tmp_path):
    with worker(tmp_path):
        right, wrong = evaluate(tmp_path, RIGHT, WRONG)
        assert (right.outcome, wrong.outcome) == (Outcome.OK, Outcome.WRONG_RESULT)
        assert asyncio.run(evaluator(tmp_path).device()).kind == "cpu"
        with pytest.raises(TaskError, match="get_inputs"):
            evaluate(tmp_path, RIGHT, task=TASK.replace("torch.randn(64, 64)", "undefined"))
    assert not any(path for part in ("requests", "working", "answers") for path in (tmp_path / part).iterdir())


def test_either_side_may_die_and_come_back(tmp_path):
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path), TASK, RIGHT], env={**os.environ, "PYTHONPATH": str(SOURCES)}
    )
    wait_for(lambda: list((tmp_path / "requests").glob("*.json")) if (tmp_path / "requests").exists() else [])
    host.kill()
    host.wait()
    with worker(tmp_path) as first:
        wait_for(lambda: list((tmp_path / "working").glob("*.json")))
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert list((tmp_path / "working").glob("*.json"))
    (tmp_path / "stop").unlink()
    with worker(tmp_path):
        (report,) = evaluate(tmp_path, RIGHT)
    assert report.outcome is Outcome.OK


HOST = """
import asyncio, sys
from stark.evaluation.folder import FolderEvaluator
from stark.settings import EvaluationSettings
from stark_worker.protocol import EvalRequest

async def main():
    async with FolderEvaluator(EvaluationSettings(folder=sys.argv[1])) as judge:
        await judge.evaluate(EvalRequest(sys.argv[2], sys.argv[3]))

asyncio.run(main())
"""


def test_no_worker_is_said_plainly(tmp_path):
    async def ask():
        async with evaluator(tmp_path, patience_s=0.3) as judge:
            await judge.evaluate(EvalRequest(TASK, RIGHT))

    with pytest.raises(EvaluatorError, match="python -m stark_worker serve"):
        asyncio.run(ask())


def test_a_folder_has_to_be_named():
    with pytest.raises(UsageError, match=r"evaluation\.folder"):
        FolderEvaluator(EvaluationSettings())
