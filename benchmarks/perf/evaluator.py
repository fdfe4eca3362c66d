"""Compares evaluations with those of KernelBench: how long they take, and whether their times agree.

    python benchmarks/perf/evaluator.py --kernelbench CHECKOUT --part a [--seconds 500] [--save]

    a  inline CUDA, b  Triton: seconds from request to report, level 1 / 26 as it is and a small task
    c  20 different CUDA candidates of level 1 / 26 at once through one worker: evaluations per minute
    d  times of kernels above 100 us by our report and by their timer, in one run: share within 3 %

Their protocol on both sides: 5 correctness and 100 timing trials, tolerances of HEAD. Our side is a warm worker that
has judged another task, with an empty build cache and the first candidate of the task. Their side is a fresh process
for each candidate, as their scripts do it; what is compared is the call of ``eval_kernel_against_ref`` alone, in which
neither the start of Python nor of CUDA counts (``process_s`` has them). With --save a call goes on where the one before
was stopped by --seconds. With --target cpu, a (our side) and c run on C++ candidates of the small task.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record
from kernels import gelu, gelu_task, task, timed_kernels

from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing
from stark_worker.protocol.request import Entry, EvalRequest, Score, Target
from stark_worker.scheduler.worker import Worker

SAMPLES = {"ours": 3, "theirs": 1}
AT_ONCE = {Target.CUDA: 20, Target.CPU: 4}
ROUNDS = 6  # their timer sees launches; on a busy host only some rounds are free of them
REST_S = 2.0
AGREEMENT, FROM_MS = 0.03, 0.1

Results = dict[str, Any]
# One thing to measure: where its results go, how many of them come before, and how to get it.
Step = tuple[list[Any], int, Callable[[], Coroutine[Any, Any, Any]]]


@dataclass(frozen=True)
class Bench:
    """The worker, the checkout and the device of a measurement."""

    kernelbench: Path | None
    target: Target
    results: Results = field(default_factory=dict)

    def tasks(self) -> dict[str, str]:
        if self.target is Target.CPU or self.kernelbench is None:
            return {"gelu, 1 M elements": gelu_task(1024, 1024)}
        (real,) = (self.kernelbench / "KernelBench" / "level1").glob("26_*.py")
        return {"level 1 / 26": real.read_text(encoding="utf-8"), "gelu, 16 M elements": gelu_task(4096, 4096)}

    def samples(self, *where: str) -> list[Any]:
        """The results so far of one thing that is measured."""
        place = self.results
        for name in where[:-1]:
            place = place.setdefault(name, {})
        samples: list[Any] = place.setdefault(where[-1], [])
        return samples


@asynccontextmanager
async def warm_worker(target: Target) -> AsyncIterator[Worker]:
    """A worker that has judged another task, has built nothing yet, and waits, as one does while a model writes."""
    with tempfile.TemporaryDirectory(prefix="stark-evaluator-") as folder:
        async with Worker(target, Path(folder, "cache"), allow_weak_sandbox=True) as worker:
            other = task("x * 2.0", 16, 16)
            await judge(worker, EvalRequest(other, other, Entry.REFERENCE, target))
            await asyncio.sleep(REST_S)
            yield worker


async def judge(worker: Worker, request: EvalRequest) -> EvalReport:
    report = await worker.judge(request)
    if report.outcome is not Outcome.OK:
        raise SystemExit(f"our side: {report.outcome}\n{report.log}")
    return report


def timing_of(report: EvalReport) -> Timing:
    assert report.timing is not None
    return report.timing


def request_for(source: str, candidate: str, target: Target, entry: Entry = Entry.CANDIDATE) -> EvalRequest:
    return EvalRequest(source, candidate, entry, target, score=Score.KERNELBENCH)


async def theirs(bench: Bench, order: dict[str, Any]) -> dict[str, Any]:
    """Run ``kernelbench_runner.py`` in a process of its own; return its answer and the seconds of it all."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(Path(__file__).with_name("kernelbench_runner.py")),
        str(bench.kernelbench),
    ]
    built = Path(tempfile.gettempdir(), "stark-theirs")  # where only times count, a second round builds nothing again
    settings = os.environ | ({"TORCH_EXTENSIONS_DIR": str(built)} if "kernels" in order else {})
    begin = time.perf_counter()
    done = await asyncio.to_thread(
        subprocess.run, command, input=json.dumps(order), capture_output=True, text=True, env=settings
    )
    if done.returncode:
        raise SystemExit(f"their side: {done.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer | {"process_s": time.perf_counter() - begin}


def side_by_side(bench: Bench, part: str, target: Target) -> Iterator[Step]:
    """Parts a and b."""
    candidate = gelu(target)
    for name, source in bench.tasks().items():

        async def ours(source: str = source) -> dict[str, Any]:
            async with warm_worker(target) as worker:
                begin = time.perf_counter()
                report = await judge(worker, request_for(source, candidate, target))
                seconds = time.perf_counter() - begin
            return {
                "evaluation_s": seconds,
                "in_lane_s": report.duration_s,
                "mean_ms": statistics.fmean(timing_of(report).samples_ms),
                "checks": report.checks,
            }

        async def other(source: str = source) -> dict[str, Any]:
            said = await theirs(bench, {"task": source, "candidate": candidate, "backend": target.value})
            return said.pop("answer") | said

        yield from ((bench.samples(part, name, "ours"), number, ours) for number in range(SAMPLES["ours"]))
        if target is not Target.CPU:
            yield from ((bench.samples(part, name, "theirs"), number, other) for number in range(SAMPLES["theirs"]))


def at_once(bench: Bench) -> Iterator[Step]:
    """Part c."""
    name, source = next(iter(bench.tasks().items()))
    count = AT_ONCE[bench.target]

    async def all_of_them() -> dict[str, Any]:
        requests = [
            request_for(source, gelu(bench.target, threads), bench.target)
            for threads in range(32, 32 * (count + 1), 32)
        ]
        async with warm_worker(bench.target) as worker:
            begin = time.perf_counter()
            reports = await asyncio.gather(*(judge(worker, request) for request in requests))
            seconds = time.perf_counter() - begin
        return {
            "task": name,
            "candidates": count,
            "seconds": seconds,
            "per_minute": 60 * count / seconds,
            "in_lane_s": [round(report.duration_s, 3) for report in reports],
        }

    yield bench.samples("c"), 0, all_of_them


def agreement(bench: Bench) -> Iterator[Step]:
    """Part d: both sides in turns, so that a device that changes its clock changes it for both."""
    kernels = timed_kernels()

    async def ours() -> dict[str, list[float]]:
        async with warm_worker(Target.CUDA) as worker:
            reports = {
                name: await judge(
                    worker, request_for(kernel["task"], kernel["candidate"], Target.CUDA, Entry(kernel["entry"]))
                )
                for name, kernel in kernels.items()
            }
        return {name: [round(ms, 6) for ms in timing_of(report).samples_ms] for name, report in reports.items()}

    async def other() -> dict[str, list[float]]:
        answer: dict[str, list[float]] = (await theirs(bench, {"kernels": kernels}))["answer"]
        return answer

    for number in range(ROUNDS):
        yield bench.samples("d", "ours"), number, ours
        yield bench.samples("d", "theirs"), number, other


def steps_of(bench: Bench, part: str) -> Iterator[Step]:
    if part in "ab":
        language = Target.TRITON if part == "b" else bench.target
        return side_by_side(bench, part, language)
    return at_once(bench) if part == "c" else agreement(bench)


def tell(part: str, results: Results) -> None:
    """Print what a finished part says."""
    if part in "ab":
        for name, sides in results[part].items():
            seconds = {side: statistics.median(run["evaluation_s"] for run in runs) for side, runs in sides.items()}
            said = "   ".join(f"{side} {value:.2f} s" for side, value in seconds.items())
            print(f"{name}: {said}", f"  {seconds['theirs'] / seconds['ours']:.1f}x" if "theirs" in seconds else "")
    elif part == "c":
        print(f"{results[part][0]['per_minute']:.1f} evaluations per minute")
    else:
        ratios = agreements(results[part])
        for name, ratio in ratios.items():
            print(f"{name:24s} ours / theirs {ratio:.4f}")
        within = sum(abs(ratio - 1) <= AGREEMENT for ratio in ratios.values())
        print(f"{within} of {len(ratios)} within {AGREEMENT:.0%}")


def agreements(sides: dict[str, list[dict[str, list[float]]]]) -> dict[str, float]:
    """Our median over theirs, of kernels that are long enough, each of its fastest round: there nothing was held up."""
    medians = {
        side: {name: min(statistics.median(run[name]) for run in runs) for name in runs[0]}
        for side, runs in sides.items()
    }
    ours, others = medians["ours"], medians["theirs"]
    return {name: ours[name] / others[name] for name in ours if others[name] >= FROM_MS}


async def measure(bench: Bench, part: str, until: float, save: Callable[[], None]) -> bool:
    """Measure what is missing. True if the part is finished."""
    for samples, number, step in steps_of(bench, part):
        if len(samples) > number:
            continue
        if time.monotonic() > until:
            return False
        samples.append(await step())
        save()
    return True


def device_name(target: Target) -> str:
    if target is Target.CPU:
        return "cpu"
    command = [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelbench", type=Path, help="a checkout of KernelBench")
    parser.add_argument("--part", required=True, choices=list("abcd"))
    parser.add_argument("--target", type=Target, default=Target.CUDA, choices=[Target.CUDA, Target.CPU])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing further after this long")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if options.target is Target.CPU and options.part in "bd":
        parser.error("parts b and d need a GPU")
    if options.target is not Target.CPU and options.kernelbench is None:
        parser.error("--kernelbench is needed: the task is theirs, and so is what ours is compared with")
    device = device_name(options.target)
    file = record.result_file("evaluator", device)
    known = record.read(file) if options.save else {}
    bench = Bench(options.kernelbench, options.target, known.get("parts", {}))
    commits = known.get("commits", {})  # parts can be measured at different times

    def save() -> None:
        commits[options.part] = record.commit()
        if options.save:
            record.write(file, record.facts(device) | {"commits": commits, "parts": bench.results})

    if asyncio.run(measure(bench, options.part, time.monotonic() + options.seconds, save)):
        tell(options.part, bench.results)
    else:
        print("not finished: call it again with --save to go on")


if __name__ == "__main__":
    main()
