"""Whether every task of a KernelBench checkout loads, by level, and whether the named subsets are complete.

python benchmarks/loading.py PATH_OF_CHECKOUT
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from stark.errors import TaskError
from stark.sources import list_checkout, select


def main() -> None:
    began = time.perf_counter()
    listings = list_checkout(Path(sys.argv[1]))
    loaded: Counter[int | None] = Counter()
    refused = []
    for listing in listings:
        try:
            loaded[listing.load().level] += 1
        except TaskError as error:
            refused.append(f"{listing.name}: {error}")
    for level, count in sorted(loaded.items(), key=str):
        print(f"level {level}: {count} tasks load")
    for name in ("representative", "paper"):
        print(f"{name}: {len(select(listings, name))} tasks")
    print("\n".join([f"{len(refused)} refused, {time.perf_counter() - began:.1f} s", *refused]))
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
