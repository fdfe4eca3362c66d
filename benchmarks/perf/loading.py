"""Checks that every task of a KernelBench checkout loads, and that the named subsets are complete.

    python benchmarks/perf/loading.py PATH_OF_CHECKOUT [--save]

What is saved names no file of the checkout but those that are refused; its digest says which checkout it was.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record

from stark.bench.task_sources import list_checkout, select
from stark.core.errors import TaskError, UsageError
from stark.core.task import Task

SUBSETS = ("representative", "paper")


def load(checkout: Path) -> dict[str, Any]:
    """Count the tasks of each level that load, and list the others with the reason."""
    began = time.perf_counter()
    tasks, refused, listings = [], {}, list_checkout(checkout)
    for listing in listings:
        try:
            tasks.append(listing.load())
        except TaskError as error:
            # without its path
            refused[listing.name] = str(error).replace(str(checkout), "the checkout")
    return {
        "loaded": dict(Counter(f"level {task.level}" for task in tasks)),
        "refused": refused,
        "subsets": {name: len(select(listings, name)) for name in SUBSETS},
        "seconds": round(time.perf_counter() - began, 2),
        "sha256": digest(tasks),
    }


def digest(tasks: Sequence[Task]) -> str:
    """Which checkout it was: of the names and sources of all that load, in the order of their names."""
    whole = hashlib.sha256()
    for task in sorted(tasks, key=lambda each: each.name):
        whole.update(f"{task.name}\0{task.source}\0".encode())
    return whole.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/loading.json")
    options = parser.parse_args()
    try:
        found = load(options.checkout)
    except UsageError as error:
        raise SystemExit(str(error)) from error
    for what, count in (found["loaded"] | found["subsets"]).items():
        print(f"{what}: {count} tasks")
    refused = [f"{name}: {why}" for name, why in found["refused"].items()]
    print("\n".join([f"{len(refused)} refused, {found['seconds']} s", *refused]))
    if options.save:
        record.write(record.result_file("loading"), record.facts() | found)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
