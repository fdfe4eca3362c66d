"""Checks that a warm worker does not grow: many evaluations through one worker, good and bad candidates in turn.

    python benchmarks/proofs/soak.py [--evaluations 1000] [--every 50] [--save]

Counted in this process and everything below it: open files, processes, zombie processes, files left in
temporary folders, unfinished builds, and memory that no file backs. Memory is judged by its slope over the second half:
the first evaluations of a process fill pools that are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record

from stark_worker.processes.process_tree import descendants
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.request import EvalRequest, Limits, Target
from stark_worker.scheduler.worker import Worker

SLOPE_MB = 1.0  # the most that 1,000 evaluations may add
JUDGED_FROM = 1_000  # fewer evaluations say nothing about a slope
LOOKS, BETWEEN_S = 10, 0.1
# A fork server reaps when it next starts something, so processes of the last evaluation may still be listed.
ALLOWED_MORE = {"open_files": 0, "processes": 0, "zombies": 2, "temporary_files": 0}

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x * 2.0 + 1.0

def get_inputs():
    return [torch.randn(16, 64)]

def get_init_inputs():
    return []
"""
BODY = """
import ctypes, os, sys
import torch
from torch import nn
AT_IMPORT
class ModelNew(nn.Module):
    def forward(self, x):
        FORWARD
"""
LIBRARY = '''
from torch.utils.cpp_extension import load_inline
CPP = r"""
extern "C" void run(const float* x, float* out, long count) {
  for (long i = 0; i < count; ++i) out[i] = x[i] * 2.0f + 1.0f;  // NUMBER
}
"""
run = ctypes.CDLL(load_inline("soak", CPP, no_implicit_headers=True, is_python_module=False)).run
'''
CALL = "out = torch.empty_like(x); run(*map(ctypes.c_void_p, (x.data_ptr(), out.data_ptr(), x.numel()))); return out"
ORPHAN = """
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "600"])
        os._exit(0)
open("left-behind", "w").close()
"""


def source(forward: str, at_import: str = "") -> str:
    return BODY.replace("AT_IMPORT", at_import).replace("FORWARD", forward)


RIGHT = "return x * 2.0 + 1.0"
# NUMBER becomes the number of the evaluation, so that all but one are new sources.
KINDS = [
    (source(RIGHT) + "# NUMBER", Outcome.OK),
    (source(CALL, LIBRARY), Outcome.OK),
    (source(CALL, LIBRARY.replace("NUMBER", "always the same")), Outcome.OK),
    (source("return x * 2.0"), Outcome.WRONG_RESULT),
    (source("raise ValueError('NUMBER')"), Outcome.RUNTIME_ERROR),
    (source("return ctypes.string_at(8)"), Outcome.CRASH),
    (source("os._exit(0)"), Outcome.CRASH),
    (source(CALL, LIBRARY.replace("long count", "lnog count")), Outcome.COMPILE_ERROR),
    (source(RIGHT, "sys.stdout.write('NUMBER' * 1_000_000)"), Outcome.OK),
    (source(RIGHT, ORPHAN), Outcome.OK),
]


@dataclass(frozen=True)
class Snapshot:
    """Counts between two evaluations."""

    evaluations: int
    seconds: float
    open_files: int
    processes: int
    zombies: int
    temporary_files: int
    memory_mb: dict[str, float]


async def settled(evaluations: int, seconds: float, temporary: Path, cache: Path) -> Snapshot:
    """Return the least of several counts: a process that is just ending is soon gone."""
    looks = []
    for _ in range(LOOKS):
        looks.append(look(evaluations, seconds, temporary, cache))
        await asyncio.sleep(BETWEEN_S)
    return min(looks, key=lambda each: (each.processes, each.temporary_files))


def look(evaluations: int, seconds: float, temporary: Path, cache: Path) -> Snapshot:
    found = descendants(os.getpid())
    alive = {os.getpid(): "host"} | {number: each.name for number, each in found.items() if each.state != "Z"}
    memory: dict[str, float] = dict.fromkeys(("host", "stark-forksrv", "stark-referee"), 0.0)
    for process, name in alive.items():
        if name in memory:
            memory[name] += own_memory_mb(process)
    files = [*temporary.rglob("*"), *cache.glob(".*")]
    return Snapshot(
        evaluations=evaluations,
        seconds=round(seconds, 1),
        open_files=sum(map(open_files, alive)),
        processes=len(alive),
        zombies=len(found) + 1 - len(alive),
        temporary_files=len(files),
        memory_mb=memory,
    )


def own_memory_mb(process: int) -> float:
    """Memory that is neither a file's nor free to be dropped."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem"))) / 1024


def open_files(process: int) -> int:
    """Of a process that hides from its own user, none: only an administrator sees them."""
    with suppress(PermissionError):
        return len(os.listdir(f"/proc/{process}/fd"))
    return 0


async def soak(evaluations: int, every: int, temporary: Path, cache: Path) -> list[Snapshot]:
    snapshots: list[Snapshot] = []
    began = time.monotonic()
    async with Worker(Target.CPU, cache, allow_weak_sandbox=True) as worker:
        for number in range(1, evaluations + 1):
            candidate, outcome = KINDS[(number - 1) % len(KINDS)]
            candidate = candidate.replace("NUMBER", str(number))
            report = await worker.judge(EvalRequest(TASK, candidate, limits=Limits(60.0, 30.0)))
            if report.outcome is not outcome:
                raise SystemExit(f"evaluation {number}: {report.outcome} instead of {outcome}\n{report.log}")
            if number % every == 0:
                snapshots.append(await settled(number, time.monotonic() - began, temporary, cache))
                print(snapshots[-1], flush=True)
    return snapshots


def slopes(snapshots: list[Snapshot]) -> dict[str, float]:
    """Megabytes for every 1,000 evaluations, by least squares over the second half."""
    half = snapshots[len(snapshots) // 2 :]
    at = [snapshot.evaluations / 1_000 for snapshot in half]
    return {
        name: round(statistics.linear_regression(at, [snapshot.memory_mb[name] for snapshot in half]).slope, 3)
        for name in half[0].memory_mb
    }


def holds(snapshots: list[Snapshot]) -> bool:
    """Print what grew since the first look and whether it may."""
    verdicts = []
    for name, allowed in ALLOWED_MORE.items():
        counts = [getattr(snapshot, name) for snapshot in snapshots]
        verdicts.append(max(counts) - counts[0] <= allowed)
        print(f"{name} {counts[0]}, later {min(counts)} to {max(counts)}: {'holds' if verdicts[-1] else 'GROWS'}")
    for name, slope in slopes(snapshots).items():
        judged = snapshots[-1].evaluations >= JUDGED_FROM
        verdicts.append(not judged or slope < SLOPE_MB)
        verdict = ("holds" if verdicts[-1] else "GROWS") if judged else "too few evaluations to tell"
        print(f"memory of {name} {slope:+.3f} MB per 1,000 evaluations: {verdict}")
    return all(verdicts)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A place of our own for all temporary files, so that only these are counted."""
    with tempfile.TemporaryDirectory(prefix="stark-soak-files-") as folder:
        tempfile.tempdir = folder
        yield Path(folder)
        tempfile.tempdir = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=1_000)
    parser.add_argument("--every", type=int, default=50, help="evaluations from one look to the next")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stark-soak-") as folder, temporary_folder() as temporary:
        snapshots = asyncio.run(soak(options.evaluations, options.every, temporary, Path(folder, "cache")))
    good = holds(snapshots)
    if options.save:
        results = {"slopes_mb_per_1000": slopes(snapshots), "snapshots": [asdict(shot) for shot in snapshots]}
        record.write(record.result_file("soak", "cpu"), record.facts("cpu") | results)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
