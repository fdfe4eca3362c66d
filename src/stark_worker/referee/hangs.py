"""Ends a wait for a candidate that hangs, long before its deadline, and says what it waits for.

A candidate hangs if it gives no answer within a limit and nothing of it compiles meanwhile. A compiler writes files to
the candidate's folder or is a process of its own; as long as either shows, only the deadline counts.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stark_worker.correctness.reference import Reference
from stark_worker.device.arena import nbytes
from stark_worker.protocol.errors import Outcome
from stark_worker.referee.candidate import Candidate

MIN_CALL_S, CALL_RATIO, RUN_SHARE = 5.0, 100.0, 1 / 12  # the last one for limits that a user raised
MIN_LOAD_S, LOADED_BYTES_PER_S = 8.0, 5e7  # a constructor draws its weights on the host
LOOK_S = 0.2  # for the CPU time of other processes
MAX_FILES = 10_000  # that are looked at

Device = Callable[[], str]  # a sentence on the work that is left on the device


def call_limit_s(reference_s: float, run_s: float) -> float:
    """Return for how long one call may go on without an answer, from the time of the reference's."""
    return min(max(MIN_CALL_S, CALL_RATIO * reference_s, RUN_SHARE * run_s), run_s)


def load_limit_s(weight_bytes: int, build_s: float) -> float:
    """Return for how long a candidate may load without a sign of work, from the size of the weights."""
    return min(MIN_LOAD_S + weight_bytes / LOADED_BYTES_PER_S, build_s)


@functools.lru_cache(maxsize=1)  # a referee has one reference
def reference_call_s(reference: Reference) -> float:
    """Return the time of one call of the reference."""
    case = reference.first if reference.first.inputs else reference.timed_inputs()
    began = time.monotonic()
    reference.run(reference.model, case.inputs, case.seed)
    if reference.device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - began


def weight_bytes(reference: Reference) -> int:
    return sum(map(nbytes, reference.weights.values()))


def await_answer(
    candidate: Candidate, did: str, within_s: float, limit_s: float, spin_s: float = 0.0, device: Device = str
) -> dict[str, Any]:
    """Return the next message of a candidate.

    Raise ``Failure``: it hangs if none comes within ``limit_s`` and nothing of it compiles. Otherwise its deadline,
    ``within_s``, decides.
    """
    until = time.monotonic() + within_s
    candidate.spin(min(spin_s, within_s))
    while True:
        begun, left_s = time.time(), until - time.monotonic()
        with contextlib.suppress(TimeoutError):
            return candidate.receive(did, min(limit_s, left_s))
        if limit_s <= left_s and not compiles(candidate, begun):
            where = "loads" if did == "loaded" else "is called"
            waiting = f"It hangs while it {where}: no answer within {limit_s:.1f} s. In its process"
            raise candidate.failure(Outcome.HANGS, f"{waiting} {candidate.describe_waits()}. {device()}".strip())
        if time.monotonic() >= until:
            raise candidate.timeout(did)


def compiles(candidate: Candidate, since: float) -> bool:
    """True if a file in its folder is newer than that, or if a process that it started computes."""
    return _newest_file(candidate.folder) > since or _others_compute(candidate)


def _newest_file(folder: Path) -> float:
    newest = 0.0
    files = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    for file in itertools.islice(files, MAX_FILES):
        with contextlib.suppress(OSError):
            newest = max(newest, os.lstat(file).st_mtime)
    return newest


def _others_compute(candidate: Candidate) -> bool:
    before = candidate.cpu_s_of_others()
    time.sleep(LOOK_S if before else 0.0)
    after = candidate.cpu_s_of_others()
    return any(after[process] > cpu_s for process, cpu_s in before.items() if process in after)
