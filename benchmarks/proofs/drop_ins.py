"""Uses drop-ins in every pair of conditions, each in a process of its own, and compares them with their originals.

    python benchmarks/proofs/drop_ins.py [--target cpu] [--folder DIR] [--all NAME] [--jobs 1] [--seconds 300] [--fresh]

On the CPU these are the odd kernels of tests/drop_in and the playbook's kernels of all example tasks, on a GPU some of
the honest kernels. DIR holds others: NAME/task.py and NAME/kernel.py, for which each condition is tried alone. --all
tries every combination of conditions with one drop-in. --jobs runs so many processes at a time. A call goes on where
the one before it was stopped by --seconds. A result counts only for the drop-in of today, whose text it carries as a
hash.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src", "tests")]

import record

from drop_in.cases import CASES, Case
from drop_in.uses import EQUAL, REFUSED, uses_of
from stark_worker.protocol.request import Target

CHUNKS = 8  # of the uses of one drop-in, each in a fresh process
CHUNK_S = 900.0
USES = ROOT / "tests" / "drop_in" / "uses.py"
GPU_KERNELS = {
    "argmax: same memory every time",
    "convolution: a product, weights packed",
    "layer_norm: CUDA",
    "matmul: split TF32 on tensor cores",
    "rms: side stream, joined",
    "row_max: two outputs of one kernel",
    "swish: graph that copies its input",
    "affine: Triton",
    "rms: Triton into kept memory",
    "softmax: Triton, tuned",
}


def cases(target: Target, folder: Path | None) -> Iterator[Case]:
    if folder is not None:
        for each in sorted(folder.iterdir()):
            task, kernel = ((each / name).read_text(encoding="utf-8") for name in ("task.py", "kernel.py"))
            yield Case(each.name, task, kernel, any_batch=False, target=target)
    elif target is Target.CPU:
        from drop_in.playbook import TASKS, playbook_case  # it needs all of STARK

        yield from CASES
        yield from map(playbook_case, TASKS)
    else:
        from adversarial.honest import task_source
        from adversarial.honest_gpu import corpus

        for honest in (each for each in corpus(target) if each.name in GPU_KERNELS):
            yield Case(honest.name, task_source(honest.task), honest.source, any_batch=False, target=target)


def run_chunk(case: Case, wanted: str, chunk: int) -> dict[str, str]:
    """Return the outcome of each use, by its conditions; a crash is the outcome of the use at which it happened."""
    with tempfile.TemporaryDirectory() as folder:
        files = {"drop_in.py": case.drop_in(), "task.py": case.task}
        for name, text in files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        words = [str(Path(folder, name)) for name in files]
        command = [sys.executable, str(USES), *words, wanted, "--skip", str(chunk), "--every", str(CHUNKS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHUNK_S)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    outcomes = {" / ".join(each["use"].values()): each["outcome"] for each in found}
    if done.returncode:
        use = list(uses_of([wanted]))[chunk::CHUNKS][len(found)]
        outcomes[" / ".join(use.values())] = f"crashed with exit code {done.returncode}: {done.stderr[-500:]}"
    return outcomes


def table(entries: dict[str, Any]) -> Iterator[str]:
    total: Counter[str] = Counter()
    for name, entry in entries.items():
        total += Counter(entry["outcomes"])
        yield f"{name:44} {entry['outcomes']}"
        yield from (f"    {use}: {outcome[:200]}" for use, outcome in entry["wrong"].items())
    yield f"{'all':44} {dict(total)}"


def add_outcomes(entry: dict[str, Any], found: dict[str, str]) -> None:
    """Count the outcomes of some uses, and keep all that is wrong."""
    wrong = {use: outcome for use, outcome in found.items() if outcome not in (EQUAL, REFUSED)}
    counted = Counter("wrong" if use in wrong else outcome for use, outcome in found.items())
    entry["outcomes"] = dict(Counter(entry["outcomes"]) + counted)
    entry["wrong"] |= wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Target, default=Target.CPU, choices=list(Target))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--all", metavar="NAME", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--fresh", action="store_true")
    given = parser.parse_args()
    file, until = record.result_file("drop-ins", given.target), time.monotonic() + given.seconds
    results = {} if given.fresh else record.read(file)
    entries = results.setdefault("drop_ins", {})
    missing, lock = list[tuple[Case, str, int]](), threading.Lock()
    for case in cases(given.target, given.folder):
        wanted = "all" if case.name == given.all else "each" if given.folder else "pairs"
        digest = hashlib.sha256((case.drop_in() + wanted).encode()).hexdigest()[:12]
        if entries.get(case.name, {}).get("digest") != digest:
            entries[case.name] = {"digest": digest, "chunks": [], "outcomes": {}, "wrong": {}}
        missing += [(case, wanted, chunk) for chunk in range(CHUNKS) if chunk not in entries[case.name]["chunks"]]

    def run(case: Case, wanted: str, chunk: int) -> None:
        if time.monotonic() > until:
            return
        found = run_chunk(case, wanted, chunk)
        with lock:
            add_outcomes(entries[case.name], found)
            entries[case.name]["chunks"].append(chunk)
            record.write(file, results | record.facts(given.target) | {"drop_ins": entries})

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda each: run(*each), missing))
    if any(len(entry["chunks"]) < CHUNKS for entry in entries.values()):
        sys.stdout.write("time is over; run it again to go on\n")
        return 0
    sys.stdout.write("\n".join(table(entries)) + "\n")
    return 1 if any(entry["wrong"] for entry in entries.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
