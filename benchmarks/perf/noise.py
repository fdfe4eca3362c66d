"""Counts false claims of "faster": a kernel is compared with itself, again and again.

    python benchmarks/perf/noise.py [--target cpu] [--pairs 200] [--load 1] [--seconds 500] [--save]

A pair is one evaluation in which candidate and opponent are the same source, each in its own process, timed in turns
on the same inputs. Of 200 intervals of 99 % at most 5 may lie below 1, and at least 190 have to cover it. With --save
a call goes on where the one before it was stopped by --seconds; --load starts so many other processes that compute.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record
from kernels import gelu, gelu_task

from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.intervals import CONFIDENCE
from stark_worker.protocol.report import Timing
from stark_worker.protocol.request import Entry, EvalRequest, Target
from stark_worker.scheduler.worker import Worker

FASTER_MOST, COVERING_LEAST = 0.025, 0.95
# Elements, for kernels of roughly 0.2 and 2 ms on the CPU, and 0.05 and 0.5 ms on a fast GPU: in bursts and one by one.
# There also for kernels so short that they drown in the handshake.
GPU_SIZES = (2**24, 2**28, 2**16)
SIZES = {Target.CPU: (2**15, 2**19), Target.CUDA: GPU_SIZES, Target.TRITON: GPU_SIZES}

Pair = dict[str, Any]


async def compare(worker: Worker, target: Target, size: int) -> Pair:
    """Compare one kernel with itself."""
    kernel = gelu(target)
    report = await worker.judge(
        EvalRequest(
            gelu_task(256, size // 256), kernel, target=target, opponent_source=kernel, opponent_entry=Entry.CANDIDATE
        )
    )
    if report.outcome is not Outcome.OK or report.timing is None or report.opponent is None:
        raise SystemExit(f"{size} elements: {report.outcome}\n{report.log}")
    return pair_of(size, report.timing, report.opponent) | {"told": report.busy_warning or ""}


def pair_of(size: int, candidate: Timing, opponent: Timing) -> Pair:
    low, high = candidate.ratio_to(opponent)
    ratios = [round(mine / other, 5) for mine, other in zip(candidate.samples_ms, opponent.samples_ms, strict=True)]
    return {
        "commit": record.commit(),
        "elements": size,
        "median_ms": [candidate.median_ms, opponent.median_ms],
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


async def measure(target: Target, count: int, until: float, save: bool, name: str) -> list[Pair]:
    """Pairs, kept under a name."""
    sizes = SIZES[target]
    with tempfile.TemporaryDirectory(prefix="stark-noise-") as folder:
        async with Worker(target, Path(folder, "cache"), allow_weak_sandbox=True) as worker:
            device = "cpu" if target is Target.CPU else (await worker.device()).name
            file = record.result_file("noise", device)
            results: dict[str, list[Pair]] = record.read(file).get("pairs", {}) if save else {}
            pairs = results.setdefault(name, [])
            while len(pairs) < count and time.monotonic() < until:
                pairs.append(await compare(worker, target, sizes[len(pairs) % len(sizes)]))
                print(f"{len(pairs)}: {pairs[-1]['low']:.4f} to {pairs[-1]['high']:.4f}", flush=True)
                if save:
                    record.write(file, record.facts(device) | {"confidence": CONFIDENCE, "pairs": results})
    return pairs


def tell(pairs: list[Pair]) -> tuple[int, int]:
    """Print and return how many are called faster, and how many intervals cover 1."""
    faster = sum(pair["high"] < 1.0 for pair in pairs)
    covering = sum(pair["low"] <= 1.0 <= pair["high"] for pair in pairs)
    print(f"{len(pairs)} pairs: {faster} called faster, {covering} cover 1")
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
    name = f"{options.target}, {options.load} beside it" if options.load else options.target.value
    with others(options.load):
        pairs = asyncio.run(measure(options.target, options.pairs, until, options.save, name))
    for size in SIZES[options.target]:
        print(f"{size} elements: ", end="")
        tell([pair for pair in pairs if pair["elements"] == size])
    faster, covering = tell(pairs)
    if len(pairs) < options.pairs:
        print("not finished: call it again with --save to go on")
        return 0
    return 0 if faster <= FASTER_MOST * len(pairs) and covering >= COVERING_LEAST * len(pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
