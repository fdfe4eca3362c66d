"""Counts runs that call a copy of the model faster than the model, on a machine that is kept busy on purpose.

    python benchmarks/proofs/identity.py [--runs 200] [--load 2] [--seconds 500]

Each run is a whole one: search, new processes for the final check, verdict. Its only candidate is a copy of the
task's own model. Other processes compute in bursts meanwhile. A call goes on where the one before it was stopped by
--seconds; runs count only for the source of the worker that judged them.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record
from kernels import task

import stark

SIZES = (64, 256, 1024)  # rows of the tasks; they take from about 0.05 to 1 ms
# A load that comes and goes is worse than an even one: it can hold up one side of a comparison more than the other.
BURSTS = """
import random, time
while True:
    until = time.monotonic() + random.random()
    while time.monotonic() < until:
        pass
    time.sleep(random.random() / 2)
"""

Run = dict[str, Any]


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processes computing in bursts."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-S", "-c", BURSTS])
            stack.enter_context(process)
            stack.callback(process.kill)
        yield


def run_once(rows: int) -> Run:
    """Search with a copy of the model as the only candidate. Return the verdict."""
    source = task("torch.softmax(x, -1) * 2.0", rows, 512)
    reply = f"```python\n{source.replace('class Model(', 'class ModelNew(')}\n```\n"
    with tempfile.TemporaryDirectory(prefix="stark-identity-") as folder:
        for name, text in {"task.py": source, "01-solo.md": reply}.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        result = stark.optimize(
            Path(folder, "task.py"),
            run=Path(folder, "run"),
            method="sampling",
            roles={"model": f"scripted:{folder}"},
            budget={"attempts": 1},
            evaluation={"torch_compile": False},
        )
    final = result.final.speedup_interval if result.final else None
    return {
        "rows": rows,
        "is_faster": result.improved,
        "contradiction": result.contradiction,
        "search": result.best and result.best.report.speedup_interval,
        "final": final,
    }


def verdict(run: Run) -> str:
    if run["is_faster"]:
        return "faster"
    return "cannot tell" if run["contradiction"] else "not faster"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--load", type=int, default=2, help="number of other processes that compute")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further run after this long")
    options = parser.parse_args()
    file, until = record.result_file("identity", "cpu"), time.monotonic() + options.seconds
    known = record.read(file)
    runs: list[Run] = known.get("runs", []) if known.get("digest") == record.worker_digest() else []
    with busy(options.load):
        while len(runs) < options.runs and time.monotonic() < until:
            runs.append(run_once(SIZES[len(runs) % len(SIZES)]))
            record.write(file, record.facts("cpu") | {"load": options.load, "runs": runs})
            print(len(runs), runs[-1]["rows"], verdict(runs[-1]), runs[-1]["final"], flush=True)
    print(f"{len(runs)} runs: {dict(Counter(map(verdict, runs)))}")
    if len(runs) < options.runs:
        print("not finished: call it again to go on")
    return 1 if any(run["is_faster"] for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
