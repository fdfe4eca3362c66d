"""The speed of light of a task, on the command line and from Python, by a real worker on the CPU."""

from __future__ import annotations

import asyncio
import json

from stark.core.settings import EvaluationSettings
from stark.core.task import load_task
from stark.run.judge import measure_bound
from stark_process import stark_command

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 128)
        self.unused = nn.Linear(256, 128)

    def forward(self, x):
        return torch.relu(self.layer(x))

def get_inputs():
    return [torch.randn(512, 256)]

def get_init_inputs():
    return []
"""
WORK = {"input_bytes": 4 * 512 * 256, "weight_bytes": 4 * 257 * 128, "output_bytes": 4 * 512 * 128}
OPERATIONS = {"fp32": 2 * 512 * 256 * 128}


def test_the_bound_of_a_task(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task = tmp_path / "task.py"
    task.write_text(TASK)
    measured = asyncio.run(measure_bound(load_task(task), EvaluationSettings()))
    bound, timing = measured.limit.bound, measured.reference.timing
    assert bound.work.operations == OPERATIONS
    assert bound.bound_ms >= max(bound.memory_ms, bound.compute_ms) > 0
    assert bound.rates["fp32"].tflops == bound.peaks.fp32_tflops
    assert measured.share == bound.bound_ms / timing.median_ms

    done = stark_command("bound", task, "--json", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["bound"]["work"] == WORK | {"operations": OPERATIONS}
    assert facts["reference_share"] == facts["bound_ms"] / facts["reference_ms"]

    shown = stark_command("bound", task, XDG_CACHE_HOME=str(tmp_path)).stdout
    assert "speed of light" in shown
    assert "0.03355 GFLOP in fp32" in shown


def test_a_worker_that_cannot_measure_its_peaks_reports_no_bound(tmp_path):
    from fakes import TASK as FAKE

    task = tmp_path / "task.py"
    task.write_text(FAKE)
    done = stark_command("bound", task, "--evaluator", "fakes:HashEvaluator", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode != 0
    assert "could not measure the peaks" in done.stderr
