"""The same exploits before KernelBench's own evaluator, from a checkout that the user gives. Needs a GPU.

Each is judged in a process of its own: what it does to that process, the evaluator included, is what is tried.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from adversarial import zoo
from stark_worker.protocol import Target

SECONDS = 180

PROGRAM = """
import json, os, sys
answer = os.dup(1)
os.dup2(2, 1)
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/src"]
try:
    from kernelbench.eval import eval_kernel_against_ref
except ImportError:
    from src.eval import eval_kernel_against_ref
import torch

task, candidate = json.load(sys.stdin)
found = eval_kernel_against_ref(
    task, candidate, measure_performance=True, num_correct_trials=5, num_perf_trials=100, device=torch.device("cuda:0")
)
os.write(answer, json.dumps({"correct": bool(found.correctness), "ms": float(found.runtime)}).encode())
"""


def run(checkout: Path, target: Target, record: Any, until: float) -> bool:
    """Whether every exploit was tried before the time was over; ``record`` keeps what is found."""
    for exploit in zoo.exploits(target):
        if not record.missing("kernelbench", exploit.name, exploit.source) or "contained" in exploit.expect:
            continue
        if time.monotonic() > until:
            return False
        reference = _judged(checkout, exploit.task, zoo.task_source(exploit.task).replace("Model", "ModelNew"))
        found = _judged(checkout, exploit.task, exploit.source)
        record.keep("kernelbench", exploit.name, exploit.source, found | {"fooled": _fooled(exploit, found, reference)})
    return True


def _judged(checkout: Path, task: str, source: str) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(checkout)],
            input=json.dumps([zoo.task_source(task), source]),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        return dict(json.loads(done.stdout))
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return {"correct": False, "ms": None}


def _fooled(exploit: zoo.Exploit, found: dict[str, Any], reference: dict[str, Any]) -> bool:
    """Whether it was taken for correct though it is not, or for faster than what it computes."""
    if not found["correct"] or found["ms"] is None:
        return False
    honest = "ok-at-true-time" in exploit.expect
    return not (honest and reference["ms"] is not None and found["ms"] >= zoo.TRUE_SHARE * reference["ms"])
