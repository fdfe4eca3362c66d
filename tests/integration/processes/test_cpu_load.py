"""Other load during timing is noticed, and gets lower priority if that is permitted."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from adversarial import zoo
from stark_worker.processes import usage
from stark_worker.processes.process_tree import TIMED_NICENESS, descendants
from stark_worker.processes.usage import CpuLoad
from stark_worker.protocol import report_text
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing
from stark_worker.protocol.request import EvalRequest
from worker_fixture import running_worker

LOOKED_S = 1.5
PERMITTED = f"import os; os.setpriority(os.PRIO_PROCESS, 0, {TIMED_NICENESS})"
TELLS = """
import os

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, *arguments):
        super().__init__()

    def forward(self, *inputs):
        raise RuntimeError(f"runs at {os.getpriority(os.PRIO_PROCESS, 0)}")
"""


@pytest.fixture
def busy():
    """A process that computes, by number."""
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as process:
        yield process.pid
        process.kill()


def test_other_processes_are_distinguished_from_our_own(busy):
    def with_it() -> float:
        return time.process_time() + descendants(os.getpid())[busy].cpu_s

    theirs, ours = CpuLoad(time.process_time), CpuLoad(with_it)
    time.sleep(LOOKED_S)
    computed = descendants(os.getpid())[busy].cpu_s
    assert theirs.busy_cores() - ours.busy_cores() > 0.5 * computed / LOOKED_S > 0.0


def test_what_every_system_does_by_itself_is_not_mentioned():
    assert usage.busy_warning(usage.MIN_BUSY_CORES * 0.9) is None
    assert usage.busy_warning(1.04).startswith("other processes kept 1.0 of ")


def test_a_time_under_other_load_is_doubted():
    quiet = EvalReport(Outcome.OK, Timing((1.0,)))
    assert report_text.timing_warnings(quiet) == []
    (doubt,) = report_text.timing_warnings(
        EvalReport(Outcome.OK, Timing((1.0,)), busy_warning="others kept 1.0 of 2 cores busy")
    )
    assert "others kept 1.0 of 2 cores busy" in doubt


def test_timed_processes_get_priority_if_that_is_permitted(tmp_path):
    permitted = subprocess.run([sys.executable, "-c", PERMITTED], capture_output=True).returncode == 0
    with running_worker(tmp_path) as worker:
        report = worker.judge(EvalRequest(zoo.task_source("rms"), TELLS))
    assert f"runs at {TIMED_NICENESS if permitted else 0}\n" in report.log + "\n", report
