"""Measures how busy many runs keep one lane: the real benchmark loop, with delays in place of models and of the GPU.

    python benchmarks/perf/lanes.py [--runs 16] [--cells 48] [--attempts 6] [--save]

A call takes 0.2 to 0.6 s and an evaluation 0.1 to 0.3 s, a hundredth of what they take in earnest. The share is the
time in which the lane judged something, of the time from the first evaluation to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src", "tests")]

import record

from fakes import TASK, HashEvaluator, PretendModel, digest
from stark.bench.grid import (
    make_grid,
    settings_factory,
)
from stark.bench.runner import run_grid
from stark.core.chat import (
    Message,
    Reply,
    ReplyForm,
)
from stark.core.task import Task
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest

CALL_S, EVALUATION_S = (0.2, 0.6), (0.1, 0.3)
SPANS: list[tuple[float, float]] = []  # when the lane was busy


class DelayedModel(PretendModel):
    """Takes its time, as a model does."""

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        await asyncio.sleep(Random(digest(messages[1].content)).uniform(*CALL_S))
        return await super().reply(messages, form)


class OneLane(HashEvaluator):
    """One evaluation at a time, each of which takes its time."""

    def __init__(self, settings: object) -> None:
        super().__init__(settings)  # type: ignore[arg-type]
        self._lane = asyncio.Lock()

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        async with self._lane:
            began = time.monotonic()
            await asyncio.sleep(Random(digest(request.candidate_source)).uniform(*EVALUATION_S))
            SPANS.append((began, time.monotonic()))
        return await super().evaluate(request)


def busy_share(spans: Sequence[tuple[float, float]]) -> float:
    return sum(end - began for began, end in spans) / (spans[-1][1] - spans[0][0])


def measure(runs: int, cells: int, attempts: int) -> float:
    """The lane's busy share while a grid of STARK runs is worked off."""
    SPANS.clear()
    options = {
        "roles": {"model": "lanes:DelayedModel"},
        "evaluation": {"evaluator": "lanes:OneLane"},
        "budget": {"attempts": attempts},
    }
    tasks = [Task(f"task{number}", f"# task {number}\n{TASK}") for number in range(cells)]
    grid = make_grid(tasks, ["stark"], [], 1, settings_factory(None, [], options))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run_grid(grid, Path(folder) / "store", runs, lambda cell, ending, standing: None))
    return busy_share(SPANS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=16, help="runs in flight at once")
    parser.add_argument("--cells", type=int, default=48, help="runs in all")
    parser.add_argument("--attempts", type=int, default=6)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/lanes.json")
    arguments = parser.parse_args()
    shares = {}
    for runs in (1, arguments.runs):
        shares[runs] = measure(runs, arguments.cells if runs > 1 else 3, arguments.attempts)
        print(f"{runs:>3} runs at once: the lane is busy {shares[runs]:.1%} of the time")
    if arguments.save:
        found = {"cells": arguments.cells, "attempts": arguments.attempts, "busy_share_by_runs_at_once": shares}
        record.write(record.result_file("lanes"), record.facts() | found)


if __name__ == "__main__":
    sys.modules["lanes"] = sys.modules["__main__"]  # the classes are named by path, and must not be loaded twice
    main()
