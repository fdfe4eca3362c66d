"""Measures how long a report on many stored runs takes.

    python benchmarks/perf/reporting.py [--runs 1000] [--attempts 30] [--save]

The runs are written straight into a store, with sources, plans, prompts and a hundred timing samples per candidate as
a real search leaves them; the report is made by the real command in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record

from stark.bench.cell import make_run_record
from stark.bench.grid import make_grid, settings_factory
from stark.core.chat import Message, Reply, Usage
from stark.core.records import Call, Ending, RunRecord, Spend, TicketRecord
from stark.core.task import Task
from stark.core.tree import Attempt, Node, Plan, Role
from stark.store.open import open_store
from stark.store.sqlite import SqliteStore
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing

METHODS = ["stark", "sampling", "reflexion", "search-agent", "ma-only"]
DEVICE = DeviceFacts("pretend device", "pretend", cores=1)
SOURCE = "x = 1\n" * 700
FAILURES = (Outcome.COMPILE_ERROR, Outcome.WRONG_RESULT, Outcome.RUNTIME_ERROR)


def fill(folder: Path, runs: int, attempts: int) -> None:
    tasks = [Task(f"level{1 + n % 3}/{n}_Task", SOURCE, "", 1 + n % 3, n) for n in range(runs // len(METHODS))]
    options = {"roles": {"model": "fakes:PretendModel"}, "budget": {"attempts": attempts}}
    cells = make_grid(tasks, METHODS, [], 1, settings_factory(None, [], options))
    rng = random.Random(0)
    with closing(open_store(folder, write=True)) as store:
        store.db.execute("PRAGMA synchronous = OFF")
        for cell in cells:
            record = make_run_record(cell, DEVICE)
            store.create(record)
            search(store, record, attempts, rng)
            store.end(record.id, Ending("attempts"))


def search(store: SqliteStore, record: RunRecord, attempts: int, rng: random.Random) -> None:
    store.finish(record.id, Node(0, None, Attempt(Role.REFERENCE, SOURCE, timed(1.0))))
    for number in range(1, attempts + 1):
        store.begin(record.id, TicketRecord(number, 0, number))
        for index, role in enumerate((Role.PLAN, Role.CODE)):
            usage = Usage(8_000, 2_500, 4_000)
            reply = Reply(SOURCE, usage=usage, cost_usd=0.05, model="pretend")
            messages = (Message("system", "You are"), Message("user", SOURCE * 5))
            call = Call(number, index, role, "pretend", messages, role, (0,), reply, "2026-01-01T00:00:00", 20.0)
            store.journal(record.id, store.reserve(record.id, number, index, Spend()), call)
        failed = rng.random() < 0.5
        report = EvalReport(rng.choice(FAILURES), log="error\n" * 100) if failed else timed(rng.lognormvariate(0, 0.5))
        store.finish(
            record.id, Node(number, 0, Attempt(Role.CODE, f"# {number}\n{SOURCE}", report, Plan("do it", SOURCE)))
        )


def timed(median_ms: float) -> EvalReport:
    samples = tuple(median_ms * (1 + 0.01 * (number % 7 - 3)) for number in range(100))
    return EvalReport(Outcome.OK, Timing(samples), checks={"mapping": "equal"}, device=DEVICE, duration_s=12.0)


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--attempts", type=int, default=30)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/reporting.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        store, out = Path(name) / "store", Path(name) / "report"
        fill(store, arguments.runs, arguments.attempts)
        store_mb = sum(file.stat().st_size for file in store.iterdir()) / 2**20
        seconds, cpu_seconds = {}, {}
        for kind, extra in (("terminal", []), ("all files", ["--out", str(out)])):
            began, before = time.perf_counter(), cpu_s()
            command = [sys.executable, "-m", "stark.cli", "report", str(store), *extra]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds[kind], cpu_seconds[kind] = time.perf_counter() - began, cpu_s() - before
            times = f"{seconds[kind]:.1f} s, {cpu_seconds[kind]:.1f} s of it on the processor"
            print(f"{arguments.runs} runs, {store_mb:.0f} MB, {kind}: {times}")
    if arguments.save:
        found = {"runs": arguments.runs, "attempts": arguments.attempts, "store_mb": store_mb}
        found |= {"seconds": seconds, "cpu_seconds": cpu_seconds, "load": os.getloadavg()}
        record.write(record.result_file("reporting"), record.facts() | found)


if __name__ == "__main__":
    main()
