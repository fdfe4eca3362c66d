"""Measures what the engine costs per attempt, with a model and an evaluator that answer at once.

    python benchmarks/perf/engine.py [--nodes 100 1000 10000] [--save]

A run is grown to each size; the figure is the time per attempt over the last hundred attempts, everything included:
selection, windows, prompts, the graph, parsing, the anchor check, and the store with every commit on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src", "tests")]

import record

from fakes import TASK
from stark.core.records import Event, EventKind
from stark.run import api
from stark.run.settings_loader import load_settings


class Clock:
    """Notes when each attempt landed and how large the process was."""

    def __init__(self) -> None:
        self.landed: list[float] = []
        self.rss_mb: dict[int, float] = {}

    def __call__(self, event: Event) -> None:
        if event.kind is EventKind.LANDED:
            self.landed.append(time.perf_counter())
            self.rss_mb[len(self.landed)] = _rss_mb()

    def per_attempt_ms(self, size: int) -> list[float]:
        moments = self.landed[size - 100 : size + 1]
        return [1000 * (after - before) for before, after in itertools.pairwise(moments)]


async def grow(folder: Path, nodes: int, clock: Clock) -> None:
    task = folder / "task.py"
    task.write_text(TASK)
    sets = ["roles.model=fakes:PretendModel", "evaluation.evaluator=fakes:HashEvaluator", "budget.usd=1e9"]
    settings = load_settings(sets=[*sets, f"budget.attempts={nodes}"])
    job = api.prepare(task, settings, folder / "run")
    await api.start(job, clock)


def measure(sizes: list[int]) -> list[dict[str, float]]:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(grow(Path(folder), max(sizes), clock))
        disk_mb = sum(file.stat().st_size for file in (Path(folder) / "run").iterdir()) / 2**20
    rows = []
    for size in sizes:
        samples = clock.per_attempt_ms(size)
        row = {"nodes": size, "median_ms": statistics.median(samples), "mean_ms": statistics.fmean(samples)}
        rows.append({**row, "p95_ms": sorted(samples)[94], "rss_mb": clock.rss_mb[size], "samples_ms": samples})
    rows[-1]["disk_mb"] = disk_mb
    return rows


def _rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/engine.json")
    arguments = parser.parse_args()
    rows = measure(sorted(arguments.nodes))
    print(f"{'nodes':>8} {'median ms':>10} {'mean ms':>10} {'p95 ms':>10} {'memory MB':>10}")
    for row in rows:
        figures = " ".join(f"{row[key]:>10.2f}" for key in ("median_ms", "mean_ms", "p95_ms", "rss_mb"))
        print(f"{row['nodes']:>8} {figures}")
    if arguments.save:
        record.write(record.result_file("engine"), record.facts() | {"rows": rows})


if __name__ == "__main__":
    main()
