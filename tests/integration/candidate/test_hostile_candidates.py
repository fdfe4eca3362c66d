"""Candidates that do the worst: each gets its outcome in time, leaves nothing, and the next evaluation is normal."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from candidate_sources import at_import, forward
from conformance.evaluator import KERNEL, RIGHT
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.request import Limits
from waiting import standstills
from worker_fixture import running_worker

LIMITS = Limits(build_s=6.0, run_s=3.0)

HANGING_KERNEL = KERNEL.replace("for (int64_t i = 0", "volatile bool on = true; while (on) {}\n    for (int64_t i = 0")
CRASHING_KERNEL = KERNEL.replace(
    "for (int64_t i = 0", "*reinterpret_cast<volatile int*>(8) = 1;\n    for (int64_t i = 0"
)

CALM = forward("return self.right(x)")

FORK_BOMB = """
import threading
def bomb():
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)
"""

HOSTILE = {
    "right": (KERNEL, Outcome.OK),
    "wrong": (forward("return self.right(x) + 1"), Outcome.WRONG_RESULT),
    "raises": (forward("raise ValueError"), Outcome.RUNTIME_ERROR),
    "segfault in Python": (forward("return ctypes.string_at(8)"), Outcome.CRASH),
    "segfault in C++": (CRASHING_KERNEL, Outcome.CRASH),
    "exits": (forward("os._exit(0)"), Outcome.CRASH),
    "endless in Python": (forward("while True: pass"), Outcome.TIMEOUT),
    "endless in C++": (HANGING_KERNEL, Outcome.TIMEOUT),
    "endless while loading": (at_import("while True: pass"), Outcome.TIMEOUT),
    "endless while building": ("# load_inline" + at_import("while True: pass"), Outcome.TIMEOUT),
    "fork bomb": (at_import(FORK_BOMB + "bomb()"), Outcome.TIMEOUT),
    "fork bomb when called": (at_import(FORK_BOMB).replace("return self.right(x)", "bomb()"), Outcome.TIMEOUT),
    "allocates 10 GB twice": (
        forward("self.hold = [torch.empty(10 * 2**28) for _ in range(2)]; return self.right(x)"),
        Outcome.OUT_OF_MEMORY,
    ),
    "prints 100 MB": (
        at_import("[os.write(1, b'x' * 1_000_000) for _ in range(100)]; raise ValueError"),
        Outcome.COMPILE_ERROR,
    ),
    "does not compile": (KERNEL.replace("const float h =", "const flaot h ="), Outcome.COMPILE_ERROR),
    "no ModelNew": ("class Other: ...\n", Outcome.COMPILE_ERROR),
    "another signature": (CALM.replace("def forward(self, x)", "def forward(self)"), Outcome.RUNTIME_ERROR),
    "another constructor": (CALM.replace("features):", "features, more):"), Outcome.COMPILE_ERROR),
}  # fmt: skip


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with running_worker(tmp_path_factory.mktemp("shared") / "cache") as worker:
        assert worker.judge(RIGHT).outcome is Outcome.OK  # all is warm
        yield worker


@pytest.mark.parametrize("name", HOSTILE)
def test_it_gets_its_outcome_in_time_and_leaves_nothing(name, worker):
    source, outcome = HOSTILE[name]
    with standstills() as late:
        began = time.monotonic()
        report = worker.judge(replace(RIGHT, candidate_source=source, limits=LIMITS))
        took = time.monotonic() - began
    assert report.outcome is outcome, report
    assert report.sandbox_level, "wherever it ran, the report says how far it was locked in"
    assert len(report.log) < 6_000
    assert took - sum(late) < LIMITS.build_s + LIMITS.run_s + 1.0, late
    assert worker.left() == (set(), set())
    assert worker.judge(RIGHT).outcome is Outcome.OK
