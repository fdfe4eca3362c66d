"""Measures the baselines of tasks on this machine, eager and torch.compile, and checks that each task tests something.

    python benchmarks/studies/baselines.py --kernelbench PATH [--subset representative] [--only level1/26]
        [--target cuda] [--score verified] [--kernelbench-version HEAD] [--tf32] [--seconds 500]
        [--deadline 300] [--save FILE]
    python benchmarks/studies/baselines.py --tasks PATH ...

Each task is admitted or marked with why not; its baselines are judged by the path of any candidate. A call begins
nothing after --seconds, and the next one with the same file goes on; a file holds one score, and every figure in it
says by which, with TF32 or without, when and from which state of the code. A baseline that is not judged within
--deadline is reported as such, with what it printed. Needs torch and the standard library, as the worker does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record

from stark.bench.task_sources import list_checkout, list_files, select
from stark.core.errors import StarkError
from stark.core.task import Task
from stark_worker.protocol.baselines import BASELINES, COMPILE_MODES, EAGER, baseline_source
from stark_worker.protocol.errors import MachineryFault, Outcome, TaskFault
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest, KernelBenchVersion, Limits, Score, Target
from stark_worker.scheduler.worker import Worker

ADMITTED = "admitted"
BROKEN, FAULT = "broken task", "fault"  # besides the outcomes of a report
PER_ROW = ("commit", "date", "torch")
CALLS = 0.9  # the share of its deadline for a baseline's calls: the worker has to say what became of them within it

Judge = Callable[[EvalRequest], Awaitable[EvalReport]]
Row = dict[str, Any]


class OutOfTime(Exception):
    """This call's time is over; the next one goes on."""


class Session:
    """Judges until its time is over, each as ``like`` but for the sources. ``rows`` are by task; ``keep`` is called
    whenever they have changed."""

    def __init__(
        self, judge: Judge, like: EvalRequest, seconds: float, deadline_s: float, rows: dict[str, Row]
    ) -> None:
        self._judge, self._like, self._deadline_s = judge, like, deadline_s
        self._until = time.monotonic() + seconds
        self.rows = rows

    async def work(self, tasks: list[Task], keep: Callable[[], None] = lambda: None) -> bool:
        """Measure what is missing. True if everything is done."""
        try:
            for task in tasks:
                row = self.rows.setdefault(task.name, {})
                for name in BASELINES:
                    if wanted(row, name):
                        row[name] = await self._measure(task, name) | stamp(self._like)
                        row["verdict"] = verdict(row[EAGER])
                        keep()
                print(line(task.name, row), flush=True)
        except OutOfTime:
            return False
        return not any(wanted(self.rows[task.name], name) for task in tasks for name in BASELINES)

    async def _measure(self, task: Task, name: str) -> Row:
        """One baseline. One that this call had no time for is not blamed for it."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise OutOfTime
        source, entry = baseline_source(task.source, name)
        request = replace(self._like, task_source=task.source, candidate_source=source, entry=entry)
        try:
            async with asyncio.timeout(min(left, self._deadline_s)):
                return summarise_report(await self._judge(request))
        except TimeoutError:
            if left < self._deadline_s:
                raise OutOfTime from None
            return failed(Outcome.TIMEOUT, f"not judged within {self._deadline_s:.0f} s")
        except TaskFault as fault:
            return failed(BROKEN, str(fault))
        except MachineryFault as fault:
            return failed(FAULT, str(fault))


def wanted(row: Row, name: str) -> bool:
    """True if a baseline is to be measured. What failed by a fault of the machine is tried again; a task whose own
    model does not run has nothing to compare with."""
    untried = row.get(name, {}).get("outcome") in (None, FAULT)
    return untried and (name == EAGER or row.get(EAGER, {}).get("outcome") == Outcome.OK)


def summarise_report(report: EvalReport) -> Row:
    """Return what is kept of a report."""
    if report.timing is None:
        return failed(report.outcome, report.log)
    low, high = report.timing.interval_ms
    figures = {"median_ms": report.timing.median_ms, "low_ms": low, "high_ms": high, "took_s": report.duration_s}
    degenerate = {"degenerate": report.degenerate} if report.degenerate else {}
    return {"outcome": report.outcome, **figures, **degenerate}


def rules(like: EvalRequest) -> Row:
    """Return the rules of a figure, as reports name them."""
    of = f" {like.kernelbench_version}" if like.score is Score.KERNELBENCH else ""
    return {"score": f"{like.score}{of}", "tf32": like.allows_tf32}


def stamp(like: EvalRequest) -> Row:
    """Return the facts of a figure. The chunks of a file have different dates and commits."""
    facts = record.facts()
    return rules(like) | {name: facts[name] for name in PER_ROW}


def failed(outcome: str, why: str) -> Row:
    return {"outcome": outcome, "why": why}


def verdict(eager: Row) -> str:
    """Return the verdict on a task, by the report on its own model."""
    if eager["outcome"] == FAULT:
        return "not known yet"
    if eager["outcome"] != Outcome.OK:
        return f"marked: its own model does not run here ({eager['outcome']})"
    return f"marked: {eager['degenerate']}" if "degenerate" in eager else ADMITTED


def speedups(row: Row) -> dict[str, float]:
    """Return the speed-up of each mode of torch.compile over eager."""
    times = {name: row[name]["median_ms"] for name in BASELINES if "median_ms" in row.get(name, {})}
    return {name: times[EAGER] / times[name] for name in COMPILE_MODES if name in times and EAGER in times}


def line(name: str, row: Row) -> str:
    found = [row[baseline] for baseline in BASELINES if baseline in row]
    figures = [f"{each['median_ms']:.4g} ms" if "median_ms" in each else each["outcome"] for each in found]
    return f"{name}: {', '.join(figures)}; {row['verdict']}"


def summary(rows: dict[str, Row]) -> list[str]:
    """Return the lines that sum up all tasks."""
    begun = [row for row in rows.values() if "verdict" in row]
    marked = sum(row["verdict"].startswith("marked") for row in begun)
    admitted = sum(row["verdict"] == ADMITTED for row in begun)
    lines = [f"{len(begun)} of {len(rows)} tasks: {admitted} admitted, {marked} marked"]
    for mode in COMPILE_MODES:
        ratios = [found[mode] for row in begun if mode in (found := speedups(row))]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            lines.append(f"{mode}: {mean:.2f}x as fast as eager (geometric mean of {len(ratios)} tasks)")
    return lines


def request_like(options: argparse.Namespace) -> EvalRequest:
    return EvalRequest(
        task_source="",
        candidate_source="",
        target=options.target,
        score=options.score,
        kernelbench_version=options.kernelbench_version,
        tf32=options.tf32,
        limits=Limits(run_s=CALLS * options.deadline),
    )


def check_kept(kept: Row, now: Row, file: Path) -> None:
    """Go on only with what was measured under the same conditions; files that name no rules are of the normal ones."""
    before = rules(EvalRequest("", "")) | kept
    for name, value in now.items():
        if before.get(name, value) != value:
            raise SystemExit(
                f"{file} was measured with {name} {before[name]}, this would be {value}: name another file."
            )


async def measure(options: argparse.Namespace, tasks: list[Task]) -> bool:
    kept = record.read(options.save) if options.save else {}
    like = request_like(options)
    with tempfile.TemporaryDirectory(prefix="stark-baselines-") as folder:
        async with Worker(options.target, Path(folder, "cache")) as worker:
            device = (await worker.device()).name
            if kept:
                check_kept(kept, {"device": device, "target": options.target, **rules(like)}, options.save)
            rows = kept.get("tasks", {})
            session = Session(worker.judge, like, options.seconds, options.deadline, rows)

            def keep() -> None:
                if options.save:
                    facts = {name: fact for name, fact in record.facts(device).items() if name not in PER_ROW}
                    found = {"target": options.target, **rules(like), "tasks": rows}
                    record.write(options.save, facts | found)

            done = await session.work(tasks, keep)
    print(*summary({task.name: rows.get(task.name, {}) for task in tasks}), sep="\n")
    return done


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--kernelbench", type=Path, help="a KernelBench checkout")
    place.add_argument("--tasks", type=Path, help="a task file, or a folder of them")
    parser.add_argument("--subset", default="all", help="representative, paper or all")
    parser.add_argument("--only", action="append", default=[], help="level1, level1/26 or a name; may be repeated")
    parser.add_argument("--target", type=Target, default=Target.CUDA, choices=list(Target))
    parser.add_argument("--score", type=Score, default=Score.VERIFIED, choices=list(Score))
    versions = list(KernelBenchVersion)
    parser.add_argument("--kernelbench-version", type=KernelBenchVersion, default="HEAD", choices=versions)
    parser.add_argument("--tf32", action="store_true", help="let torch use TF32, which on a CPU changes nothing")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long this call may take")
    parser.add_argument("--deadline", type=float, default=300.0, help="how long one baseline may take")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the results here, and go on with what it holds")
    options = parser.parse_args()
    if options.seconds < options.deadline:
        parser.error("--seconds has to be at least --deadline, or a slow baseline would be begun for ever")
    return options


def main() -> int:
    options = arguments()
    try:
        listed = list_checkout(options.kernelbench) if options.kernelbench else list_files(options.tasks)
        tasks = [listing.load() for listing in select(listed, options.subset, options.only)]
    except StarkError as error:
        raise SystemExit(str(error)) from error
    if not asyncio.run(measure(options, tasks)):
        print("not finished: call it again with the same --save to go on")
    return 0


if __name__ == "__main__":
    sys.exit(main())
