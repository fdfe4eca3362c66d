"""Simulates the whole of KernelBench on 1, 8 and 64 GPUs: 250 tasks x 5 methods x 30 attempts x 3 seeds.

    python benchmarks/perf/sizing.py [--save]

Runs begin in the order of the grid. An attempt makes its calls one after another, then waits for the next free GPU;
after the last attempt the winner is built with torch's toolchain and judged again. Each call and each evaluation takes
its mean in ``stark bench --dry-run``, which also says how many calls a method makes.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src", "tests")]

import record

from stark.bench.forecast import PACES
from stark.run.estimate import REPAIR_SHARE
from stark_worker.protocol.request import Target

TASKS, METHODS, ATTEMPTS, SEEDS = 250, ("stark", "search-agent", "ma-only", "sampling", "reflexion"), 30, 3
TEAMS = ("stark", "ma-only")  # a planner and a coder: two calls, or the one of a repair
RUNS_PER_GPU = 16
PACE = PACES[Target.CUDA]

Step = tuple[bool, float]  # needs a GPU, seconds


def work_off(method: str, is_first: bool) -> Iterator[Step]:
    """Yield the steps of a run. The first one on a task has the reference and the baselines measured."""
    if is_first:
        for compiling in (0.0, PACE.compiled, PACE.tuned):
            yield True, compiling + PACE.evaluation
    calls = 2 - REPAIR_SHARE if method in TEAMS else 1
    for _ in range(ATTEMPTS):
        yield False, calls * PACE.call
        yield True, PACE.evaluation
    yield False, PACE.stock_build
    yield True, PACE.final


def simulate(gpus: int) -> dict[str, float]:
    """Return hours and busy share of that many GPUs."""
    grid = itertools.product(range(TASKS), METHODS, range(SEEDS))
    waiting = (work_off(method, (method, seed) == (METHODS[0], 0)) for _, method, seed in grid)
    free, order = [0.0] * gpus, itertools.count()  # when each GPU is free; runs that are ready at once keep their order
    ready = [(0.0, next(order), run) for run in itertools.islice(waiting, RUNS_PER_GPU * gpus)]
    now = busy = 0.0
    while ready:
        now, _, run = heapq.heappop(ready)
        step = next(run, None)
        if step is None:
            following = next(waiting, None)
            if following is not None:
                heapq.heappush(ready, (now, next(order), following))
            continue
        needs_gpu, took = step
        begin = max(now, free[0]) if needs_gpu else now
        if needs_gpu:
            heapq.heapreplace(free, begin + took)
            busy += took
        heapq.heappush(ready, (begin + took, next(order), run))
    return {
        "gpus": gpus,
        "parallel_runs": RUNS_PER_GPU * gpus,
        "hours": now / 3600,
        "gpu_hours": gpus * now / 3600,
        "busy_share": busy / (gpus * now),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/sizing.json")
    arguments = parser.parse_args()
    rows = [simulate(gpus) for gpus in (1, 8, 64)]
    for row in rows:
        print(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
    if arguments.save:
        record.write(record.result_file("sizing"), record.facts() | {"rows": rows})


if __name__ == "__main__":
    main()
