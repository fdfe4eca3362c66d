"""Measures how throughput grows with the lanes of a Ray cluster, and the coordinator's cost per attempt.

    python benchmarks/perf/scale.py [--lanes 1 8 64] [--save]

The benchmark loop, the store, the gateway and Ray are real. Models answer at once, and a lane takes four seconds for
each evaluation, as an H200 does. Lanes are simulated: asynchronous actors, several lanes in each. Efficiency is the
time in which lanes were busy, of the time they had. The cost is processor time, so other load does not change it.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src", "tests")]

import record

from fakes import TASK
from stark.bench.grid import make_grid, settings_factory
from stark.bench.runner import run_grid
from stark.core.task import Task
from stark.evaluation.cluster import evaluator
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest

EVALUATION_S = 4.0
ACTORS = 2
RUNS = {1: 4, 8: 64, 64: 500}  # enough for each number of lanes to keep them busy
ATTEMPTS = 2


class SimulatedNode:
    """Answers after a fixed time, on several lanes."""

    lanes = 1

    def __init__(self, archive: bytes, target: str, allow_weak_sandbox: bool) -> None:
        self._free: Any = None

    async def start(self) -> dict[str, Any]:
        import asyncio

        self._free = asyncio.Semaphore(self.lanes)
        device = '{"name": "simulated", "kind": "cpu"}'
        return {"host": "here", "level": "none", "isolation": "none", "build_kind": "none", "device": device}

    async def judge(self, request: str, entries: Any = None) -> dict[str, str]:
        import asyncio
        import hashlib
        import json

        async with self._free:
            await asyncio.sleep(4.0)
        asked = json.loads(request)
        number = int(hashlib.sha256(asked["candidate_source"].encode()).hexdigest()[:8], 16)
        took = 10.0 if asked["entry"] == "Model" else 1.0 + number % 1900 / 100
        samples = [took + n / 1e6 for n in range(100)]
        timing = {"samples_ms": samples}
        opponent = {"samples_ms": [10.0] * 100} if asked["opponent_source"] else None
        return {"report": json.dumps({"outcome": "ok", "timing": timing, "opponent": opponent})}


class SimulatedCluster(evaluator.RayEvaluator):
    """The Ray evaluator with simulated lanes. Notes when it was asked and answered."""

    lanes_in_all = 1
    asked: list[float] = []  # noqa: RUF012 - one for the whole measurement
    answered: list[float] = []  # noqa: RUF012

    def _command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).resolve()), "--gateway", str(self.lanes_in_all)]

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        self.asked.append(time.monotonic())
        report = await super().evaluate(request)
        self.answered.append(time.monotonic())
        return report


def serve(lanes: int) -> None:
    """Be the gateway to a local cluster whose actors have this many lanes together."""
    import ray

    from stark.evaluation.cluster import gateway, pool

    actors = min(ACTORS, lanes)
    SimulatedNode.lanes = lanes // actors
    pool.LaneNode = SimulatedNode  # type: ignore[assignment, misc]
    gateway.LANE_CAPACITY = 2 * SimulatedNode.lanes
    start = ray.init
    ray.init = lambda **options: start(**{**options, "resources": {pool.CPU_LANE: actors}})
    gateway.run()


def measure(lanes: int) -> dict[str, float]:
    SimulatedCluster.lanes_in_all = lanes
    SimulatedCluster.asked.clear()
    SimulatedCluster.answered.clear()
    options = {
        "roles": {"model": "fakes:PretendModel"},
        "evaluation": {"evaluator": "scale:SimulatedCluster", "final": False},
        "budget": {"attempts": ATTEMPTS, "usd": 1e9},
    }
    runs = RUNS[lanes]
    tasks = [Task(f"task{number}", f"# task {number}\n{TASK}") for number in range(runs)]
    grid = make_grid(tasks, ["stark"], [], 1, settings_factory(None, [], options))
    with tempfile.TemporaryDirectory() as folder:
        before = cpu_s()
        asyncio.run(run_grid(grid, Path(folder) / "store", runs, lambda cell, ending, standing: None))
        used = cpu_s() - before
    answered = sorted(SimulatedCluster.answered)
    full = len(answered) - lanes  # the last of each lane: the queue runs empty at the end
    span = answered[full - 1] - min(SimulatedCluster.asked)
    return {
        "lanes": lanes,
        "runs": runs,
        "evaluations": len(answered),
        "per_second": full / span,
        "efficiency": full * EVALUATION_S / (lanes * span),
        "coordinator_ms_per_attempt": 1000 * used / (runs * ATTEMPTS),
        "coordinator_ms_per_evaluation": 1000 * used / len(answered),
    }


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--gateway", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/scale.json")
    arguments = parser.parse_args()
    if arguments.gateway:
        serve(arguments.gateway)
        return
    rows = []
    for lanes in arguments.lanes:
        rows.append(measure(lanes))
        print(", ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
    if arguments.save:
        found = {"evaluation_s": EVALUATION_S, "attempts_per_run": ATTEMPTS, "rows": rows}
        record.write(record.result_file("scale"), record.facts() | found)


if __name__ == "__main__":
    sys.modules["scale"] = sys.modules["__main__"]  # the evaluator is named by path, and must not be loaded twice
    main()
