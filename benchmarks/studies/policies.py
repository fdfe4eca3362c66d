"""Which policy grows the best trees, on a simulated landscape (see landscape.py). A study, not a test.

    python benchmarks/studies/policies.py [--runs 1000] [--attempts 30] [--save]

The policies are the real ones, on the real tree; only what an attempt leads to is simulated. Every policy gets the same
tasks. Reported per variation of the assumptions: the geometric mean of the best kernel's speed over the reference (1
where there is none or only a slower one, as in reports), its 95 % interval, and the ratio to adapted epsilon-greedy on
the same tasks with its interval.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record
from landscape import VARIATIONS, Landscape, Simulation

from stark.core.settings import SearchSettings
from stark.search.policies import POLICIES, open_policy

OURS = "epsilon-greedy"


def search(policy: str, landscape: Landscape, seed: int, attempts: int) -> float | None:
    """The log speed of the best kernel one search finds."""
    chosen = open_policy(policy, SearchSettings())
    simulation = Simulation(landscape, seed)
    for number in range(1, attempts + 1):
        parent = chosen.select(simulation.tree, Random(f"{seed}/{number}/select"))
        assert parent is not None  # nothing is ever in flight here
        simulation.attempt(parent)
    return simulation.best


def kept(speed: float | None) -> float:
    """The log of what a user has in the end, by the rule of ``stark.analysis.metrics.kept``."""
    return max(0.0, speed or 0.0)


def interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval by the normal approximation, which a thousand runs allow."""
    mean = statistics.fmean(values)
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def study(landscape: Landscape, runs: int, attempts: int) -> list[dict[str, Any]]:
    """One row per policy."""
    found = {name: [search(name, landscape, seed, attempts) for seed in range(runs)] for name in POLICIES}
    ours = list(map(kept, found[OURS]))
    rows = []
    for name, values in found.items():
        speeds = list(map(kept, values))
        ratio = interval([theirs - mine for theirs, mine in zip(speeds, ours, strict=True)])
        rows.append(
            {
                "policy": name,
                "success": sum(value is not None for value in values) / runs,
                "fast_1": sum(value is not None and value >= 0 for value in values) / runs,
                "speed": [math.exp(value) for value in interval(speeds)],
                "ratio_to_epsilon_greedy": [math.exp(value) for value in ratio],
            }
        )
    return sorted(rows, key=lambda row: -row["speed"][0])


def show(name: str, rows: list[dict[str, Any]]) -> None:
    heads = ("success", "fast_1", "speed", "95 %", "to eps-greedy", "95 %")
    widths = (8, 8, 8, 14, 14, 14)
    print(f"\n{name}\n{'policy':<16}", *(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
    for row in rows:
        (speed, *bounds), (ratio, *sure) = row["speed"], row["ratio_to_epsilon_greedy"]
        ranges = [f"{low:.2f} to {high:.2f}" for low, high in (bounds, sure)]
        shares = f"{row['success']:>8.1%} {row['fast_1']:>8.1%}"
        print(f"{row['policy']:<16} {shares} {speed:>7.2f}x {ranges[0]:>14} {ratio:>13.2f}x {ranges[1]:>14}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000, help="simulated runs per policy and variation, at least 2")
    parser.add_argument("--attempts", type=int, default=30)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/policies.json")
    arguments = parser.parse_args()
    if arguments.runs < 2:
        parser.error("--runs has to be at least 2: a single run has no interval")
    logging.disable(logging.WARNING)  # a lifted throttle is worth a word in one run, not in thousands
    began = time.monotonic()
    results = {}
    for name, landscape in VARIATIONS.items():
        results[name] = study(landscape, arguments.runs, arguments.attempts)
        show(name, results[name])
    print(f"\n{arguments.runs} runs per policy and variation, {time.monotonic() - began:.0f} s")
    if arguments.save:
        extent = {"runs": arguments.runs, "attempts": arguments.attempts}
        assumptions = {name: vars(landscape) for name, landscape in VARIATIONS.items()}
        found = extent | {"assumptions": assumptions, "results": results}
        record.write(record.result_file("policies"), record.facts() | found)


if __name__ == "__main__":
    main()
