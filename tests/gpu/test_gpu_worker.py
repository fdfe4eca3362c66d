"""The worker on a real GPU, as it is really used: one process that is given a request and answers with a report.

Needs torch with CUDA, triton, nvcc and pytest, and nothing else of the project. From the root of a checkout:

    PYTHONPATH=src python3 -m pytest -c tests/gpu/pytest.ini --rootdir tests/gpu --confcutdir tests/gpu tests/gpu

Every test stands alone, so parts can be run with ``-k``. After each the device has passed the worker's health check:
a device that fails it is no report but an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stark_worker.protocol import (
    DeviceFacts,
    EvalReport,
    EvalRequest,
    Limits,
    Outcome,
    Precision,
    Target,
    from_json,
    to_json,
)

TEMPLATES = Path(__file__).parents[2] / "src" / "stark" / "agents" / "templates"
LIMITS = Limits(build_s=240.0, run_s=20.0)

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return torch.relu(x * 2.0 + self.bias)

def get_inputs():
    return [torch.randn(ROWS, 64)]

def get_init_inputs():
    return [64]
"""
SMALL, LARGE = TASK.replace("ROWS", "16"), TASK.replace("ROWS", str(2**21))

HEAD = """
import ctypes, os, subprocess, threading, time
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def right(self, x):
        return torch.relu(x * 2.0 + self.bias)

    def forward(self, x):
        return work(self, x)
"""

CUDA = (
    HEAD
    + '''
SOURCE = r"""
__global__ void scale(const float* x, const float* bias, float* out, long count, int columns) {
    const long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < count) { float y = x[i] * FACTOR + bias[i % columns]; out[i] = y > 0 ? y : 0; }
}
__global__ void wild(float* out) { out[(1l << 40) + threadIdx.x] = 1; }
__global__ void spin(volatile int* flag) { while (*flag == 0); }
extern "C" int run(const float* x, const float* bias, float* out, long count, int columns) {
    LAUNCH;
    return cudaGetLastError();
}
"""
with open("kernel.cu", "w") as file:
    file.write(SOURCE)
command = ["nvcc", "-O3", "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-o", "kernel.so", "kernel.cu"]
done = subprocess.run(command, capture_output=True, text=True)
if done.returncode:
    raise RuntimeError(done.stderr)
run = ctypes.CDLL(os.path.abspath("kernel.so")).run

def work(model, x):
    out = torch.empty_like(x)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, model.bias, out)]
    code = run(*pointers, ctypes.c_long(x.numel()), x.shape[1])
    if code:
        raise RuntimeError(f"launch failed: {code}")
    return out
'''
)
LAUNCH = "scale<<<(count + 255) / 256, 256>>>(x, bias, out, count, columns)"


def cuda(launch: str = LAUNCH, factor: str = "2.0f") -> str:
    return CUDA.replace("LAUNCH", launch).replace("FACTOR", factor)


TRITON = (
    HEAD
    + """
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, bias_ptr, out_ptr, count, columns, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(x_ptr + at, mask=at < count)
    bias = tl.load(bias_ptr + at % columns, mask=at < count)
    tl.store(out_ptr + at, tl.maximum(x * 2.0 + bias, 0.0), mask=at < count)

def work(model, x):
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, model.bias, out, x.numel(), x.shape[1], block=1024)
    return out
"""
)


def torch_only(body: str) -> str:
    return f"{HEAD}\ndef work(model, x):\n    {body}\n"


FAULTS = {
    "cuda wrong": (cuda(factor="2.1f"), Outcome.WRONG_RESULT, "expected"),
    "cuda does not compile": (cuda(factor="flaot(2)"), Outcome.COMPILE_ERROR, "flaot"),
    "cuda illegal address": (cuda("wild<<<1, 32>>>(out)"), Outcome.RUNTIME_ERROR, "illegal memory access"),
    "cuda infinite kernel": (
        cuda("int* f; cudaMalloc(&f, 4); cudaMemset(f, 0, 4); spin<<<1, 1>>>(f)"),
        Outcome.TIMEOUT,
        "in time",
    ),
    "raises": (torch_only("return x @ x"), Outcome.RUNTIME_ERROR, "return x @ x"),
    "device memory": (torch_only("return torch.empty(2**40, device='cuda')"), Outcome.OUT_OF_MEMORY, "memory"),
    "exits": (torch_only("os._exit(0)"), Outcome.CRASH, "exit code 0"),
    "segfault": (torch_only("return ctypes.string_at(8)"), Outcome.CRASH, "SIGSEGV"),
    "result on the host": (torch_only("return model.right(x).cpu()"), Outcome.WRONG_RESULT, "float32[16, 64] on cpu"),
    "triton wrong": (TRITON.replace("x * 2.0", "x * 2.1"), Outcome.WRONG_RESULT, "expected"),
    "triton does not compile": (TRITON.replace("x * 2.0 +", "x.nothing +"), Outcome.COMPILE_ERROR, "nothing"),
    "triton illegal address": (
        TRITON.replace("tl.store(out_ptr + at,", "tl.store(out_ptr + at + (1 << 40),"),
        Outcome.RUNTIME_ERROR,
        "illegal memory access",
    ),
}

LYING_CLOCK = """
import gc
for found in gc.get_objects():
    if type(found).__name__ == "DeviceClock":
        found._elapsed = lambda: 0.3
"""

RULES = {
    "changed_inputs": torch_only("y = model.right(x); x.add_(1); return y"),
    "clock_disagreement": torch_only("y = model.right(x); time.sleep(0.002); return y") + LYING_CLOCK,
}


def work(command: list[str], text: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stark_worker", *command],
        input=text,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=os.environ,
    )


def judge(
    task: str,
    candidate: str,
    target: Target,
    entry: str = "ModelNew",
    limits: Limits = LIMITS,
    precision: Precision = Precision.FP32,
) -> EvalReport:
    began = time.monotonic()
    done = work(["judge"], to_json(EvalRequest(task, candidate, entry, target, precision, limits=limits)))
    assert done.returncode == 0, done.stderr
    report = from_json(EvalReport, done.stdout)
    took = time.monotonic() - began
    median = f"{report.timing.median_ms:.5f} ms" if report.timing else report.log[:300]
    sys.stderr.write(f"\n{report.outcome} {report.rule} {median} {report.checks} in {took:.1f} s\n")
    return report


def test_the_device_is_described():
    done = work(["device", "--target", "cuda"], "")
    assert done.returncode == 0, done.stderr
    sys.stderr.write(done.stdout)
    facts = from_json(DeviceFacts, done.stdout)
    assert facts.kind == "cuda"
    assert (facts.architecture or "").startswith("sm_")
    assert all((facts.memory_gb, facts.bandwidth_gb_s, facts.shared_memory_kb, facts.cores))
    assert {"python", "torch", "c++", "cuda", "driver", "nvcc", "triton"} <= facts.toolchain.keys()


@pytest.mark.parametrize("task", [SMALL, LARGE], ids=["in bursts", "call by call"])
def test_right_kernels_are_ok_whatever_they_are_written_in(task):
    for source, target in ((cuda(), Target.CUDA), (TRITON, Target.TRITON), (task, Target.CUDA)):
        report = judge(task, source, target, "Model" if source is task else "ModelNew")
        assert report.outcome is Outcome.OK, report.log
        assert report.timing
        assert report.device
        assert report.device.kind == "cuda"
        assert ("bursts" in report.checks["timing"]) == (task is SMALL)
        assert float(report.checks["first_call_ms"]) > 0


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_candidate_is_an_outcome(name):
    source, outcome, said = FAULTS[name]
    target = Target.TRITON if "triton" in name else Target.CUDA
    limits = Limits(build_s=60.0, run_s=3.0 if outcome is Outcome.TIMEOUT else 20.0)
    report = judge(SMALL, source, target, limits=limits)
    assert (report.outcome, said in report.log) == (outcome, True), report


@pytest.mark.parametrize("rule", RULES)
def test_a_candidate_that_cheats_is_rejected_by_the_rule(rule):
    report = judge(SMALL, RULES[rule], Target.CUDA)
    assert (report.outcome, report.rule) == (Outcome.REJECTED, rule), report


def test_a_candidate_may_return_the_same_memory_every_time():
    keeping = "model.out = getattr(model, 'out', x.clone()); return model.out.copy_(model.right(x))"
    report = judge(SMALL, torch_only(keeping), Target.CUDA)
    assert report.outcome is Outcome.OK, report.log
    assert "bursts" not in report.checks["timing"]


def test_half_precision_and_dropout():
    task = SMALL.replace("torch.relu(x * 2.0 + self.bias)", "nn.functional.dropout(x * 2.0 + self.bias)")
    report = judge(task, task, Target.CUDA, "Model", precision=Precision.FP16)
    assert report.outcome is Outcome.OK, report.log


@pytest.mark.parametrize("language", ["triton", "cpu", "cuda"])
def test_the_examples_that_models_are_shown_work(language):
    task, kernel = ((TEMPLATES / name).read_text() for name in ("example-model.py", f"example-{language}-new.py"))
    report = judge(task, kernel, Target(language))
    assert report.outcome is Outcome.OK, report.log
