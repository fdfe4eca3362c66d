"""Compares reported times with times that are known: kernels that spin for a set time. Needs a GPU.

    python benchmarks/proofs/accuracy.py [--rounds 3] [--seconds 300] [--fresh]

Each kernel is judged in turns with the same kernel that spins only for a base time, so that neither is shorter than the
clock can tell. The difference of the two reported medians has to be the set time: within 0.5 us below 20 us, within 2 %
from there on. One kernel differs between two processes by up to 0.5 us, so the median of all rounds counts, each with
new processes. A call goes on where the one before it was stopped by --seconds; results count only for the source of the
worker that measured them.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record
from kernels import task

from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import Check
from stark_worker.protocol.request import Entry, EvalRequest, Target
from stark_worker.scheduler.worker import Worker

SET_US, BASE_US = (5, 10, 20, 50, 100, 500, 2000), 5
SHORT_US, SHORT_ERROR_US, ERROR_SHARE = 20, 0.5, 0.02

# The device's own clock advances in steps of 32 ns on an H200.
SPIN = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

NANOSECONDS = SET_NS

CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__device__ unsigned long long now() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void spin_kernel(const float* x, float* y, unsigned long long nanoseconds) {
  const unsigned long long begin = now();
  if (threadIdx.x == 0)
    while (now() - begin < nanoseconds) {}
  __syncthreads();  // loads must not hide behind the spin
  y[threadIdx.x] = x[threadIdx.x] + 1.0f;
}

torch::Tensor spin(torch::Tensor x, int64_t nanoseconds) {
  auto y = torch::empty_like(x);
  spin_kernel<<<1, x.numel(), 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), nanoseconds);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""
module = load_inline("spin", "torch::Tensor spin(torch::Tensor x, int64_t nanoseconds);", CUDA, functions=["spin"])


class ModelNew(nn.Module):
    def forward(self, x):
        return module.spin(x, NANOSECONDS)
'''

Results = dict[str, Any]


def spinning(microseconds: int) -> str:
    """Return a candidate whose kernel takes this long; all share one extension."""
    return SPIN.replace("SET_NS", str(1000 * microseconds))


async def measure(worker: Worker, microseconds: int) -> Results:
    """Judge one kernel in turns with the one that spins for the base time."""
    request = EvalRequest(
        task("x + 1.0", 16, 16),
        spinning(BASE_US + microseconds),
        target=Target.CUDA,
        opponent_source=spinning(BASE_US),
        opponent_entry=Entry.CANDIDATE,
    )
    report = await worker.judge(request)
    if report.outcome is not Outcome.OK or report.timing is None or report.opponent is None:
        raise SystemExit(f"{microseconds} us: {report.outcome}\n{report.log}")
    measured_us = 1e3 * (report.timing.median_ms - report.opponent.median_ms)
    return {
        "set_us": microseconds,
        "measured_us": round(measured_us, 4),
        "unsure_us": round(1e3 * report.timing.unsure_ms, 4),
        "clocks": report.checks.get(Check.CLOCKS),
        "samples_ms": [round(ms, 6) for ms in report.timing.samples_ms],
        "base_ms": [round(ms, 6) for ms in report.opponent.samples_ms],
    }


def is_accurate(set_us: int, measured_us: float) -> bool:
    """True if a reported time is as close to the set one as promised."""
    return abs(measured_us - set_us) <= (SHORT_ERROR_US if set_us < SHORT_US else ERROR_SHARE * set_us)


def table(found: list[Results]) -> Iterator[str]:
    for set_us, measured in by_time(found).items():
        rounds = " ".join(f"{each - set_us:+.2f}" for each in measured)
        error_us = statistics.median(measured) - set_us
        said = "as promised" if is_accurate(set_us, statistics.median(measured)) else "NOT as promised"
        yield f"{set_us:5d} us   error {error_us:+.2f} us {error_us / set_us:+.2%}   {said}   rounds {rounds}"


def by_time(found: list[Results]) -> dict[int, list[float]]:
    """Return what each round measured, by the set time."""
    return {set_us: [each["measured_us"] for each in found if each["set_us"] == set_us] for set_us in SET_US}


async def run(rounds: int, until: float, fresh: bool) -> list[Results]:
    """Measure what is missing, and keep it."""
    with tempfile.TemporaryDirectory(prefix="stark-accuracy-") as folder:
        async with Worker(Target.CUDA, Path(folder, "cache"), allow_weak_sandbox=True) as worker:
            device = (await worker.device()).name
            file = record.result_file("accuracy", device)
            known = {} if fresh else record.read(file)
            found: list[Results] = known.get("spins", []) if known.get("digest") == record.worker_digest() else []
            while len(found) < rounds * len(SET_US) and time.monotonic() < until:
                found.append(await measure(worker, SET_US[len(found) % len(SET_US)]))
                record.write(file, record.facts(device) | {"spins": found})
                print(found[-1]["set_us"], found[-1]["measured_us"], flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="evaluations of each kernel")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing further after this long")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    options = parser.parse_args()
    found = asyncio.run(run(options.rounds, time.monotonic() + options.seconds, options.fresh))
    if len(found) < options.rounds * len(SET_US):
        print("not finished: call it again to go on")
        return 1
    print(*table(found), sep="\n")
    return 0 if all(is_accurate(set_us, statistics.median(each)) for set_us, each in by_time(found).items()) else 1


if __name__ == "__main__":
    sys.exit(main())
