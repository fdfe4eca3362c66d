"""Counts false claims of "faster": a kernel is compared with itself, again and again.

    python benchmarks/perf/noise.py [--target cpu] [--pairs 200] [--load 1] [--seconds 500] [--save]

A pair is one evaluation in which candidate and opponent are the same source, each in its own process, timed in turns on
the same inputs. Of 200 intervals of 99 % at most 2 may lie below 1, and at least 190 have to cover it. With --save a
call goes on where the one before it was stopped by --seconds. Pairs count only for the source of the worker that judged
them; of an older file the widths of the intervals are kept. --load starts so many other processes that compute.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record
from kernels import gelu, gelu_task, task

from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.intervals import CONFIDENCE
from stark_worker.protocol.report import Timing
from stark_worker.protocol.request import Entry, EvalRequest, Target
from stark_worker.scheduler.worker import Worker

FASTER_MOST, COVERING_LEAST = 0.01, 0.95
ROUND = 4  # pairs of a kernel before the next one has its turn, so that a warm referee serves them

Pair = dict[str, Any]
Results = dict[str, Any]


class Kernel(NamedTuple):
    """A kernel that is compared with itself."""

    task: str
    source: str
    entry: Entry = Entry.CANDIDATE

    def request(self, target: Target) -> EvalRequest:
        return EvalRequest(
            self.task, self.source, self.entry, target, opponent_source=self.source, opponent_entry=self.entry
        )


def kernels(target: Target) -> dict[str, Kernel]:
    """Return kernels by roughly their time; on the GPU as it is on a fast one."""

    def own(elements: int) -> Kernel:
        return Kernel(gelu_task(256, elements // 256), gelu(target))

    def product(size: int) -> Kernel:
        text = task("x @ x", size, size)
        return Kernel(text, text, Entry.REFERENCE)

    if target is Target.CPU:
        return {"0.2 ms": own(2**15), "2 ms": own(2**19)}
    return {
        "5 us": own(2**20),
        "20 us": own(2**22),
        "100 us": own(3 * 2**23),
        "1 ms": product(3072),
        "20 ms": product(8192),
    }


async def compare(worker: Worker, target: Target, name: str, kernel: Kernel) -> Pair:
    """Compare one kernel with itself."""
    report = await worker.judge(kernel.request(target))
    if report.outcome is not Outcome.OK or report.timing is None or report.opponent is None:
        raise SystemExit(f"{name}: {report.outcome}\n{report.log}")
    return pair_of(name, report.timing, report.opponent) | {"told": report.busy_warning or ""}


def pair_of(name: str, candidate: Timing, opponent: Timing) -> Pair:
    low, high = candidate.ratio_to(opponent)
    ratios = [round(mine / other, 5) for mine, other in zip(candidate.samples_ms, opponent.samples_ms, strict=True)]
    return {
        "commit": record.commit(),
        "digest": record.worker_digest(),
        "kernel": name,
        "median_ms": [candidate.median_ms, opponent.median_ms],
        "unsure_ms": candidate.unsure_ms,
        "low": low,
        "high": high,
        "ratios": ratios,
    }


@contextlib.contextmanager
def others(count: int) -> Iterator[None]:
    """So many processes that compute for as long as this lasts."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield


def load(file: Path) -> Results:
    """Return the pairs of today's worker by name, and the widths of intervals of the worker before."""
    known = record.read(file)
    pairs = {
        name: [pair for pair in found if pair.get("digest") == record.worker_digest()]
        for name, found in known.get("pairs", {}).items()
    }
    if known.get("pairs") and not any(pairs.values()):
        known["before"] = {
            name: {"commit": found[-1]["commit"], "widths": widths(found)}
            for name, found in known["pairs"].items()
            if found
        }
    return {"before": known.get("before", {}), "pairs": {name: found for name, found in pairs.items() if found}}


def widths(pairs: list[Pair]) -> dict[str, float]:
    """Return the median width of the intervals of each kernel, by its median time."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(str(pair.get("kernel", pair.get("elements"))), []).append(pair)
    return {
        f"{1e3 * statistics.median(pair['median_ms'][0] for pair in each):.1f} us": round(
            statistics.median(pair["high"] - pair["low"] for pair in each), 5
        )
        for each in found.values()
    }


async def measure(target: Target, count: int, until: float, save: bool, name: str) -> Results:
    """Measure pairs until there are so many, each kernel in its turn."""
    subjects = list(kernels(target).items())
    with tempfile.TemporaryDirectory(prefix="stark-noise-") as folder:
        async with Worker(target, Path(folder, "cache"), allow_weak_sandbox=True) as worker:
            device = "cpu" if target is Target.CPU else (await worker.device()).name
            file = record.result_file("noise", device)
            results = load(file) if save else {"before": {}, "pairs": {}}
            pairs = results["pairs"].setdefault(name, [])
            while len(pairs) < count and time.monotonic() < until:
                pairs.append(await compare(worker, target, *_next_kernel(subjects, pairs)))
                last = pairs[-1]
                print(f"{len(pairs)} {last['kernel']}: {last['low']:.4f} to {last['high']:.4f}", flush=True)
                if save:
                    record.write(file, record.facts(device) | {"confidence": CONFIDENCE, **results})
    return results


def _next_kernel(subjects: list[tuple[str, Kernel]], pairs: list[Pair]) -> tuple[str, Kernel]:
    """Return the kernel whose turn it is."""
    done = [pair["kernel"] for pair in pairs]
    rounds = min(done.count(name) // ROUND for name, _ in subjects)
    return next(each for each in subjects if done.count(each[0]) < ROUND * (rounds + 1))


def tell(pairs: list[Pair]) -> tuple[int, int]:
    """Print and return how many are called faster, and how many intervals cover 1."""
    faster = sum(pair["high"] < 1.0 for pair in pairs)
    covering = sum(pair["low"] <= 1.0 <= pair["high"] for pair in pairs)
    print(f"{len(pairs)} pairs: {faster} called faster, {covering} cover 1; widths {widths(pairs)}")
    return faster, covering


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Target, default=Target.CPU, choices=list(Target))
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further pair after this long")
    parser.add_argument("--load", type=int, default=0, help="number of other processes that compute")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    name = f"{options.target}, {options.load} busy processes" if options.load else options.target.value
    with others(options.load):
        results = asyncio.run(measure(options.target, options.pairs, until, options.save, name))
    pairs = results["pairs"][name]
    for kernel in kernels(options.target):
        print(f"{kernel}: ", end="")
        tell([pair for pair in pairs if pair["kernel"] == kernel])
    faster, covering = tell(pairs)
    for earlier, found in results["before"].items():
        print(f"before, {earlier} at {found['commit']}: widths {found['widths']}")
    if len(pairs) < options.pairs:
        print("not finished: call it again with --save to go on")
        return 0
    return 0 if faster <= FASTER_MOST * len(pairs) and covering >= COVERING_LEAST * len(pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
