"""Whether the search matters: the method stark against best-of-K sampling, both with the playbook and equal attempts.

    python benchmarks/search.py [--attempts 8] [--seeds 5] [--tasks NAME ...] [--minutes 60] [--save]

Both methods choose from the same moves: sampling stacks them at random, stark plans one after the other. Every run is
kept under --folder: called again, it goes on with what is missing. A run counts by its best speed-up over its own root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path

from playbook import ROOT, TASKS, facts, local_device, search

METHODS = ("stark", "sampling")


def speedup(task: Path, folder: Path, attempts: int, method: str, seed: int) -> float:
    """The best speed-up of one run; 1 where nothing correct was found, for the task's own model is always there."""
    kept = folder / "speedup.json"
    if not kept.exists():
        result = search(task, folder, attempts, method, seed)
        kept.write_text(json.dumps(result.speedup or 1.0))
    return float(json.loads(kept.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", default=[path.stem for path in TASKS])
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no further run after this long")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "benchmark-search")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/search-cpu.json")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    found: dict[str, dict[str, list[float]]] = {}
    for seed in range(given.seeds):  # seed by seed, so that an early end leaves all tasks with equally many
        for task in (path for path in TASKS if path.stem in given.tasks):
            for method in METHODS:
                folder = given.folder / f"{task.stem}-{method}-{seed}"
                if time.monotonic() < end or (folder / "speedup.json").exists():
                    speeds = found.setdefault(task.stem, {}).setdefault(method, [])
                    speeds.append(speedup(task, folder, given.attempts, method, seed))
    rows = {task: each for task, each in found.items() if set(each) == set(METHODS)}
    wins = 0
    for task, each in rows.items():
        medians = [statistics.median(each[method]) for method in METHODS]
        wins += medians[0] > medians[1]
        print(f"{task:<20} stark {medians[0]:7.2f}x   sampling {medians[1]:7.2f}x   ({len(each['stark'])} seeds)")
    print(f"stark is faster on {wins} of {len(rows)} tasks")
    if given.save:
        device = asyncio.run(local_device())
        result = {**facts(), "device": device, "attempts": given.attempts, "wins": wins, "speedups": rows}
        (ROOT / "benchmarks" / "results" / "search-cpu.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
