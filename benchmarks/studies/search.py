"""Compares the search with sampling: the method stark against best-of-K, both with the playbook and equal attempts.

    python benchmarks/studies/search.py [--attempts 8] [--seeds 5] [--tasks NAME ...] [--minutes 25] [--save]

Both methods choose from the same moves: sampling stacks them at random, stark plans one after the other. A kernel is
judged once for all runs, so that the methods differ by what they find and not by the clock's noise, and in turns with
the reference on the same inputs, as on a shared machine times drift. The winners are judged again, three times, and the
median counts: the best of many measurements flatters.
Every report is kept under --folder: called again, the runs are repeated from there and go on with what is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record
from playbook import TASKS

from stark.core.interfaces import Evaluator
from stark.core.settings import Settings
from stark.core.task import load_task
from stark.evaluation.open import open_evaluator
from stark.evaluation.requests import make_request
from stark.evaluation.shared import SharedEvaluator
from stark.run import api, assembly
from stark.run.settings_loader import load_settings
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.folder import write_atomically
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing
from stark_worker.protocol.request import EvalRequest

METHODS = ("stark", "sampling")
JUDGED = 3  # how often a winner is


class JudgedOnce(SharedEvaluator):
    """An evaluator that keeps every report in a folder and judges nothing twice.

    Candidates are judged in turns with the reference, and their times put as if it had always taken as long as at
    first: what a shared machine does to both is not the candidate's.
    """

    def __init__(self, evaluator: Evaluator, folder: Path) -> None:
        super().__init__(evaluator)
        self._folder = folder
        self._reference_ms: dict[str, float] = {}
        self.judged = 0
        folder.mkdir(parents=True, exist_ok=True)

    async def device(self) -> DeviceFacts:
        """Return the first measurement: prompts name it, so with other figures runs would not be the same again."""
        file = self._folder / "device.json"
        if not file.exists():
            write_atomically(file, to_json(await super().device()))
        return from_json(DeviceFacts, file.read_text())

    async def evaluate(self, request: EvalRequest, again: int = 0) -> EvalReport:
        task, opponent = request.task_source, None if request.is_reference else request.task_source
        report = await self._once(replace(request, profile_below_ms=0.0, opponent_source=opponent), again)
        if report.timing and report.opponent:
            scale = self._reference_ms[task] / report.opponent.median_ms
            return replace(report, timing=_scaled(report.timing, scale), opponent=_scaled(report.opponent, scale))
        if report.timing:
            self._reference_ms[task] = report.timing.median_ms
        return report

    async def _once(self, request: EvalRequest, again: int) -> EvalReport:
        name = hashlib.sha256(to_json(request).encode()).hexdigest()
        file = self._folder / f"{name}{f'-{again}' * bool(again)}.json"
        if not file.exists():
            self.judged += 1
            write_atomically(file, to_json(await super().evaluate(request)))
        return from_json(EvalReport, file.read_text())


def _scaled(timing: Timing, scale: float) -> Timing:
    return Timing(tuple(sample * scale for sample in timing.samples_ms), timing.unsure_ms * scale)


async def search(path: Path, method: str, seed: int, attempts: int, evaluator: Evaluator) -> str | None:
    """One run with the playbook; returns the source of its best kernel."""
    sets = [f"budget.attempts={attempts}", f"method={method}", f"seed={seed}", f"roles.model=playbook:{seed}"]
    with tempfile.TemporaryDirectory() as folder:
        job = api.prepare(path, load_settings(sets=[*sets, "evaluation.final=false"]), Path(folder) / "run")
        with api.new_store(job.folder) as store:
            record = assembly.new_run_record(job, await evaluator.device())
            store.create(record)
            return (await api.drive(assembly.assemble(record, store, evaluator, lambda event: None), [])).source


async def speedup(path: Path, source: str | None, evaluator: JudgedOnce) -> float:
    """A winner against the reference, in turns; 1 where nothing holds, for the task's own model is always there."""
    if source is None:
        return 1.0
    task = load_task(path)
    request = make_request(task, source, Settings().evaluation)
    reports = [await evaluator.evaluate(request, again) for again in range(1, 1 + JUDGED)]
    ratios = [each.opponent.median_ms / each.timing.median_ms for each in reports if each.timing and each.opponent]
    return statistics.median(ratios) if len(ratios) == JUDGED else 1.0


async def compare(given: argparse.Namespace, evaluator: JudgedOnce) -> dict[str, dict[str, list[float]]]:
    """The speed-ups of all runs by task and method."""
    end = time.monotonic() + 60 * given.minutes
    found: dict[str, dict[str, list[float]]] = {}
    for seed in range(given.seeds):  # seed by seed, so that an early end leaves all tasks with about equally many
        for path in (path for path in TASKS if path.stem in given.tasks):
            if time.monotonic() > end:
                return found
            begun = time.monotonic()
            for method in METHODS:
                source = await search(path, method, seed, given.attempts, evaluator)
                speeds = found.setdefault(path.stem, {}).setdefault(method, [])
                speeds.append(await speedup(path, source, evaluator))
            last = "   ".join(f"{method} {found[path.stem][method][-1]:.2f}x" for method in METHODS)
            print(
                f"{path.stem} {seed}: {last}   {time.monotonic() - begun:.0f} s, {evaluator.judged} judged", flush=True
            )
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", default=[path.stem for path in TASKS])
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no further task after this long")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "benchmark-search")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/search-cpu.json")
    given = parser.parse_args()
    async with JudgedOnce(open_evaluator(Settings().evaluation), given.folder) as evaluator:
        rows = await compare(given, evaluator)
        device = json.loads(to_json(await evaluator.device()))
    wins = 0
    for task, each in rows.items():
        medians = [statistics.median(each[method]) for method in METHODS]
        wins += medians[0] > medians[1]
        print(f"{task:<20} stark {medians[0]:7.2f}x   sampling {medians[1]:7.2f}x   ({len(each['stark'])} seeds)")
    print(f"stark is faster on {wins} of {len(rows)} tasks")
    if given.save:
        found = {"device": device, "attempts": given.attempts, "wins": wins, "speedups": rows}
        record.write(record.result_file("search", "cpu"), record.facts() | found)


if __name__ == "__main__":
    asyncio.run(main())
