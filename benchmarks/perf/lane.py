"""Measures the lane of one device: candidates a minute, and what hangs, faults and variants cost.

    python benchmarks/perf/lane.py [--target cuda] [--part large small hangs faults variants]
        [--kernelbench CHECKOUT] [--seconds 560] [--save]

    large     four candidates of each of six KernelBench tasks, 0.5 to 15 GB a call; wanted: 15 a minute
    small     eight candidates of each of three small tasks; wanted: 30 a minute
    hangs     twenty candidates in a row that never end; wanted: 10 s of the lane each
    faults    candidates that kill their context, and an ordinary one after each of them
    variants  24 block sizes of three kernels; wanted: the best is found for less than three ordinary evaluations

A candidate of a large task is its own model and a kernel that copies the result, so every one is built, checked and
timed. With --save a call goes on where the one before was stopped by --seconds; results count for today's worker only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record
from kernels import copying, endless, faulting, gelu, gelu_task, with_block_size

from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import Entry, EvalRequest, Target
from stark_worker.scheduler.worker import Worker

LARGE = (
    "level1/36_RMSNorm_",
    "level1/82_conv_depthwise_2D_square_input_square_kernel",
    "level2/2_ConvTranspose2d_BiasAdd_Clamp_Scaling_Clamp_Divide",
    "level2/18_Matmul_Sum_Max_AvgPool_LogSumExp_LogSumExp",
    "level3/8_ResNetBasicBlock",
    "level3/43_MinGPTCausalAttention",
)
SMALL = ((256, 1024), (1024, 1024), (2048, 2048))
OF_LARGE, OF_SMALL = 4, 8
HANGS, FAULTS = 20, 6
BLOCK_SIZES = [32 * each for each in range(1, 25)]

Results = dict[str, Any]


class Lane:
    """One warm worker and its target."""

    def __init__(self, worker: Worker, target: Target) -> None:
        self._worker, self._target = worker, target

    async def judge(self, task: str, candidate: str, *, expected: Outcome = Outcome.OK, **more: Any) -> EvalReport:
        report = await self._worker.judge(EvalRequest(task, candidate, target=self._target, **more))
        if report.outcome is not expected:
            raise SystemExit(f"{report.outcome} in place of {expected}\n{report.log}")
        return report

    async def judge_reference(self, task: str) -> None:
        await self.judge(task, task, entry=Entry.REFERENCE)

    async def flood(self, work: Sequence[tuple[str, str]]) -> Results:
        """Judge all at once. The references before them are not counted: a search judges each only once."""
        for task in dict.fromkeys(task for task, _ in work):
            await self.judge_reference(task)
        begin = time.perf_counter()
        reports = await asyncio.gather(*itertools.starmap(self.judge, work))
        seconds = time.perf_counter() - begin
        total = sum((each.phases_s for each in reports[1:]), reports[0].phases_s)
        return {
            "candidates": len(work),
            "seconds": round(seconds, 2),
            "per_minute": round(60 * len(work) / seconds, 1),
            "mean_phases_s": {name: round(value / len(work), 3) for name, value in asdict(total).items()},
        }

    # -- parts ------------------------------------------------------------------------------------------------------

    async def large(self, folder: Path) -> Results:
        tasks = [(folder / f"{name}.py").read_text(encoding="utf-8") for name in LARGE]
        return await self.flood([(task, copying(task, 64 * n)) for task in tasks for n in range(1, OF_LARGE + 1)])

    async def small(self) -> Results:
        tasks = [gelu_task(*size) for size in SMALL]
        sources = [gelu(self._target, 64 * n) for n in range(1, OF_SMALL + 1)]
        return await self.flood(list(itertools.product(tasks, sources)))

    async def hangs(self) -> Results:
        """Judge one after another, so that each has the lane for itself, then an ordinary one."""
        task = gelu_task(*SMALL[0])
        await self.judge_reference(task)
        sources = [endless(self._target, 64 + number) for number in range(HANGS)]
        found = [await self.judge(task, source, expected=Outcome.HANGS) for source in sources]
        after = await self.judge(task, gelu(self._target, 512))
        return {"lane_s": [lane_s(each) for each in found], "ordinary_after_s": lane_s(after)}

    async def faults(self) -> Results:
        task = gelu_task(*SMALL[0])
        await self.judge_reference(task)
        before, after = [], []
        for number in range(1, FAULTS + 1):
            before.append(lane_s(await self.judge(task, gelu(self._target, 64 * number))))
            report = await self._worker.judge(EvalRequest(task, faulting(self._target, number), target=self._target))
            if report.outcome not in (Outcome.CRASH, Outcome.RUNTIME_ERROR):
                raise SystemExit(f"a faulting candidate ended as {report.outcome}\n{report.log}")
            after.append(lane_s(await self.judge(task, gelu(self._target, 64 * number + 32))))
        return {"before_s": before, "after_s": after}

    async def variants(self) -> Results:
        """Find the best block size of kernels on three sizes, by one request and by one evaluation of each."""
        found = []
        for size in SMALL:
            task, source = gelu_task(*size), with_block_size(self._target)
            await self.judge_reference(task)
            plain = [await self.judge(task, gelu(self._target, 64 * number)) for number in (1, 2, 3)]
            choices = tuple({"BLOCK": block} for block in BLOCK_SIZES)
            report = await self.judge(task, source, variants=choices)
            times = {each.constants["BLOCK"]: each.median_ms for each in report.variants if each.outcome is Outcome.OK}
            won = next(each.constants["BLOCK"] for each in report.variants if each.won)
            found.append(
                {
                    "task": f"{size[0]} x {size[1]}",
                    "won": won,
                    "times_ms": times,
                    "cost_s": lane_s(report),
                    "ordinary_s": [lane_s(each) for each in plain],
                }
            )
        return {"kernels": found}


def lane_s(report: EvalReport) -> float:
    """Return the seconds in which the device was not free for another candidate."""
    return round(replace(report.phases_s, queue=0.0, build=0.0).total_s, 2)


def describe(results: Results) -> Iterable[str]:
    for part in ("large", "small"):
        if part in results:
            yield f"{part}: {results[part]['per_minute']} candidates a minute, {results[part]['mean_phases_s']}"
    if "hangs" in results:
        yield f"hangs: at most {max(results['hangs']['lane_s'])} s, mean {statistics.fmean(results['hangs']['lane_s'])}"
    if "faults" in results:
        medians = [statistics.median(results["faults"][name]) for name in ("before_s", "after_s")]
        yield "an ordinary candidate: {} s, after one that killed its context {} s".format(*medians)
    for each in results.get("variants", {}).get("kernels", []):
        yield f"variants, {each['task']}: block {each['won']}, {each['cost_s']} s; one takes {each['ordinary_s']} s"


async def measure(given: argparse.Namespace, results: Results, file: Path, until: float) -> bool:
    """Measure the parts that are missing, each in a worker with an empty build cache. True if nothing is left."""
    for part in given.part:
        if part in results:
            continue
        if time.monotonic() > until:
            return False
        with tempfile.TemporaryDirectory(prefix="stark-lane-") as folder:
            async with Worker(given.target, Path(folder, "cache"), allow_weak_sandbox=True) as worker:
                lane = Lane(worker, given.target)
                tasks = (given.kernelbench / "KernelBench",) if part == "large" else ()
                results[part] = await getattr(lane, part)(*tasks)
                device = (await worker.device()).name
        if given.save:
            record.write(file, record.facts(device) | {"parts": results})
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["large", "small", "hangs", "faults", "variants"]
    parser.add_argument("--target", type=Target, default=Target.CPU, choices=[Target.CPU, Target.CUDA])
    parser.add_argument("--part", nargs="+", choices=parts)
    parser.add_argument("--kernelbench", type=Path, help="a checkout of KernelBench, for the large tasks")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further part after this long")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    given.part = given.part or (parts if given.kernelbench else parts[1:])
    if "large" in given.part and given.kernelbench is None:
        parser.error("the large tasks are KernelBench's: name a checkout with --kernelbench")
    file = record.result_file("lane", given.target)
    known = record.read(file) if given.save else {}
    results: Results = known.get("parts", {}) if known.get("digest") == record.worker_digest() else {}
    is_finished = asyncio.run(measure(given, results, file, time.monotonic() + given.seconds))
    print("\n".join(describe(results)) if is_finished else "not finished: call it again with --save to go on")
    return 0


if __name__ == "__main__":
    sys.exit(main())
