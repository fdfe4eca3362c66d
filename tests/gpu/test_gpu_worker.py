"""The worker on a real GPU: one warm worker, good and bad candidates in CUDA and Triton.

Needs torch with CUDA, triton, nvcc and pytest, and nothing else of the project. From the root of a checkout:

    PYTHONPATH=src python3 -m pytest -c tests/gpu/pytest.ini --rootdir tests/gpu --confcutdir tests/gpu tests/gpu

Every test stands alone, so parts can be run with ``-k``; ``scripts/gpu`` runs all of them, in parts that resume. After
each fault nothing is left. Every evaluation ends with the worker's health check, and a device that fails it is an error
and no report; after what can harm the device itself a normal evaluation is tried at once.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from stark_worker.protocol.baselines import COMPILE_MODES, baseline_source
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.errors import MachineryFault, Outcome
from stark_worker.protocol.isolation import Level
from stark_worker.protocol.report import Check, DeviceFacts, EvalReport
from stark_worker.protocol.request import Entry, EvalRequest, KernelBenchVersion, Limits, Precision, Score, Target
from worker_fixture import running_worker

TEMPLATES = Path(__file__).parents[2] / "src" / "stark" / "agents" / "templates" / "paper"
LIMITS = Limits(build_s=240.0, run_s=20.0)
# Of candidates that never end. A call that hangs is noticed after 5 s, or after 10 s if Triton compiled in it.
SHORT = Limits(build_s=15.0, run_s=13.0)
DEADLINE_S = 280.0  # of one evaluation: a worker that does not answer fails one test, not all of them
LANGUAGES = [Target.CUDA, Target.TRITON]

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

MODEL = """
import ctypes, os, subprocess, threading, time
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def right(self, x):
        return work(self, x)

    def forward(self, x):
        FORWARD
"""
CUDA = '''
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

__global__ void scale(const float* x, const float* bias, float* out, int64_t count, int64_t columns) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) { float y = x[i] * FACTOR + bias[i % columns]; out[i] = y > 0 ? y : 0; }
}
__global__ void wild(float* out) { out[(int64_t{1} << 40) + threadIdx.x] = 1; }
__global__ void spin(volatile float* out) { while (out[0] == 0); }

void launch(torch::Tensor x, torch::Tensor bias, torch::Tensor out, cudaStream_t stream) {
  scale<<<(x.numel() + 255) / 256, 256, 0, stream>>>(
      x.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(), x.numel(), x.size(1));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
torch::Tensor run(torch::Tensor x, torch::Tensor bias) {
  auto out = torch::empty_like(x);
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  STEP;
  return out;
}
"""
module = load_inline("scale", "torch::Tensor run(torch::Tensor x, torch::Tensor bias);", SOURCE, functions=["run"],
                     extra_cuda_cflags=["-O3"])

def work(model, x):
    return module.run(x, model.bias)
'''
LAUNCH = "launch(x, bias, out, stream)"
SIDE_STREAM = """
  auto side = c10::cuda::getStreamFromPool();
  cudaEvent_t before, after;
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&before, cudaEventDisableTiming));
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&after, cudaEventDisableTiming));
  C10_CUDA_CHECK(cudaEventRecord(before, stream));
  C10_CUDA_CHECK(cudaStreamWaitEvent(side.stream(), before, 0));
  launch(x, bias, out, side.stream());
  C10_CUDA_CHECK(cudaEventRecord(after, side.stream()));
  C10_CUDA_CHECK(cudaStreamWaitEvent(stream, after, 0));
  C10_CUDA_CHECK(cudaEventDestroy(before));
  C10_CUDA_CHECK(cudaEventDestroy(after))
"""
TRITON = """
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, bias_ptr, out_ptr, count, columns, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(x_ptr + at, mask=at < count)
    bias = tl.load(bias_ptr + at % columns, mask=at < count)
    tl.store(out_ptr + at, tl.maximum(x * 2.0 + bias, 0.0), mask=at < count)

@triton.jit
def endless(out_ptr):
    seen = tl.load(out_ptr)
    while seen == 0.0:
        seen = tl.load(out_ptr, volatile=True)

def work(model, x):
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, model.bias, out, x.numel(), x.shape[1], block=1024)
    return out
"""


def cuda(step: str = LAUNCH, factor: str = "2.0f") -> str:
    return model() + CUDA.replace("STEP", step).replace("FACTOR", factor)


def model(forward: str = "return self.right(x)") -> str:
    return MODEL.replace("FORWARD", forward)


KERNEL = {Target.CUDA: cuda(), Target.TRITON: model() + TRITON}
FORK_BOMB = """
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
"""


def forward(body: str, language: Target) -> str:
    """The right kernel of a language, in a model that does something else with it."""
    return KERNEL[language].replace("return self.right(x)", body)


# Whatever the language: what is done in forward(), the outcome, and a word of the log.
FAULTS = {
    "raises": ("return self.right(x) @ x", Outcome.RUNTIME_ERROR, "self.right(x) @ x"),
    "wrong": ("return self.right(x) + 1", Outcome.WRONG_RESULT, "expected"),
    "segfault": ("return ctypes.string_at(8)", Outcome.CRASH, "SIGSEGV"),
    "exits": ("os._exit(0)", Outcome.CRASH, "exit code 0"),
    "endless in Python": ("while True: pass", Outcome.HANGS, "its process on the host waits"),
    "device memory": ("return torch.empty(2**40, device='cuda')", Outcome.OUT_OF_MEMORY, "memory"),
    "host memory": (
        "self.hold = [torch.empty(10 * 2**28) for _ in range(2)]; return self.right(x)",
        Outcome.OUT_OF_MEMORY,
        "memory",
    ),
    "result on the host": ("return self.right(x).cpu()", Outcome.WRONG_RESULT, "float32[16, 64] on cpu"),
}
TEXTS = {
    "no ModelNew": (lambda text: text.replace("class ModelNew", "class Other"), Outcome.COMPILE_ERROR, "ModelNew"),
    "another signature": (lambda text: text.replace("forward(self, x)", "forward(self)"), Outcome.RUNTIME_ERROR, ""),
    "another constructor": (lambda text: text.replace("features):", "features, more):"), Outcome.COMPILE_ERROR, "more"),
    "100 MB of output": (
        lambda text: text + "\n[os.write(1, b'x' * 1_000_000) for _ in range(100)]; raise ValueError",
        Outcome.COMPILE_ERROR,
        "ValueError",
    ),
    "fork bomb": (lambda text: text + FORK_BOMB, Outcome.TIMEOUT, ""),
}
# What only the kernel itself can do wrong.
KERNELS = {
    "cuda wrong": (cuda(factor="2.1f"), Outcome.WRONG_RESULT, "expected"),
    "cuda does not compile": (cuda(factor="flaot(2)"), Outcome.COMPILE_ERROR, "flaot"),
    "cuda illegal address": (
        cuda("wild<<<1, 32, 0, stream>>>(out.data_ptr<float>())"),
        Outcome.RUNTIME_ERROR,
        "illegal memory access",
    ),
    "cuda endless": (
        cuda("out.zero_(); spin<<<1, 1, 0, stream>>>(out.data_ptr<float>())"),
        Outcome.HANGS,
        "runs on the GPU without end",
    ),
    "cuda endless on the host": (
        cuda("volatile bool on = true; while (on) {}"),
        Outcome.HANGS,
        "its process on the host waits",
    ),
    "cuda device memory": (
        cuda("out = torch::empty({int64_t{1} << 40}, x.options())"),
        Outcome.OUT_OF_MEMORY,
        "memory",
    ),
    "triton wrong": (model() + TRITON.replace("x * 2.0", "x * 2.1"), Outcome.WRONG_RESULT, "expected"),
    "triton does not compile": (model() + TRITON.replace("x * 2.0 +", "x.none +"), Outcome.COMPILE_ERROR, "none"),
    "triton illegal address": (
        model() + TRITON.replace("tl.store(out_ptr + at,", "tl.store(out_ptr + at + (1 << 40),"),
        Outcome.RUNTIME_ERROR,
        "illegal memory access",
    ),
    "triton endless": (
        model("out = torch.zeros_like(x); endless[(1,)](out); return out") + TRITON,
        Outcome.HANGS,
        "runs on the GPU without end",
    ),
}
# Ways through the headers, all to the same result.
SOURCES = {
    "side stream": cuda(SIDE_STREAM),
    "operators of torch": cuda(LAUNCH + "; out = at::relu(out)"),
    "device properties": cuda(
        'TORCH_CHECK(at::cuda::getCurrentDeviceProperties()->multiProcessorCount > 0, "none"); ' + LAUNCH
    ),
    "full headers": cuda("out = torch::clamp_min(torch::addcmul(bias.expand_as(x), x, torch::full_like(x, 2.0)), 0)"),
}


class Judge:
    """A warm worker, and what it keeps."""

    def __init__(self, worker, cache: Path) -> None:
        self._worker, self._cache = worker, cache

    def __call__(
        self,
        task: str,
        candidate: str,
        target: Target,
        entry: Entry = Entry.CANDIDATE,
        limits: Limits = LIMITS,
        precision: Precision = Precision.FP32,
    ) -> EvalReport:
        began = time.monotonic()
        report = self.ask(EvalRequest(task, candidate, entry, target, precision, limits=limits))
        took = time.monotonic() - began
        median = f"{report.timing.median_ms:.5f} ms" if report.timing else report.log[:300]
        sys.stderr.write(f"\n{report.outcome} {report.rule} {median} {report.checks} in {took:.1f} s\n")
        return report

    def ask(self, request: EvalRequest) -> EvalReport:
        return self._worker.judge(request, DEADLINE_S)

    def built(self) -> list[Path]:
        return sorted(self._cache.iterdir())

    def expect(self, source: str, target: Target, outcome: Outcome, said: str) -> None:
        """A fault gets its outcome within its limits and leaves nothing."""
        limits = SHORT if outcome in (Outcome.TIMEOUT, Outcome.HANGS) else LIMITS
        began = time.monotonic()
        report = self(SMALL, source, target, limits=limits)
        took = time.monotonic() - began
        assert (report.outcome, said in report.log) == (outcome, True), report
        assert len(report.log) < 6_000
        assert took < limits.build_s + limits.run_s + 1.0
        assert self._worker.left() == (set(), set())


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    cache = tmp_path_factory.mktemp("shared") / "cache"
    with running_worker(cache, Target.CUDA) as worker:
        judge = Judge(worker, cache)
        for language in LANGUAGES:  # all is warm, and the right kernels are built; whether they are right is a test
            with contextlib.suppress(MachineryFault):
                judge(SMALL, KERNEL[language], language)
        yield judge


@pytest.mark.parametrize("task", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("language", [*LANGUAGES, None])
def test_right_kernels_are_ok_whatever_they_are_written_in(judge, language, task):
    """None is the task's own model."""
    source, entry = (KERNEL[language], Entry.CANDIDATE) if language else (task, Entry.REFERENCE)
    report = judge(task, source, language or Target.CUDA, entry)
    assert report.outcome is Outcome.OK, report.log
    assert report.timing
    assert report.device
    assert report.device.kind == "cuda"
    assert report.checks[Check.CLOCKS].startswith("gated: ")
    assert "all compared" in report.checks[Check.TIMING]
    assert report.labels.first_call_ms > 0
    assert report.sandbox_level in (Level.STRONG, Level.STANDARD)


WAITED = "\nimport torch._inductor.async_compile as pool\n\npool.AsyncCompile.wait_pool_ready()\n"
COMPILED_ONCE = """
import json, os, pathlib

class ModelNew(ModelNew):
    looked = False

    def forward(self, x):
        out = super().forward(x)
        if not self.looked:
            self.looked = True
            folder = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
            facts = [(file, json.loads(file.with_suffix(".json").read_text())) for file in folder.rglob("*.ttir")]
            found = [(file.read_text(), fact["num_warps"], fact["num_stages"]) for file, fact in facts]
            if len(found) < 5 or len(set(found)) < len(found):
                raise RuntimeError(f"{len(found)} kernels were compiled, {len(set(found))} of them different")
        return out
"""


@pytest.mark.parametrize("baseline", COMPILE_MODES)
def test_torch_compile_is_judged_as_any_candidate(judge, baseline):
    """Also where it has had the time to start processes that compile for it: confined as they are, they have no GPU."""
    source, entry = baseline_source(SMALL, baseline)
    report = judge(SMALL, source + WAITED, Target.CUDA, entry, replace(LIMITS, run_s=DEADLINE_S))
    assert report.outcome is Outcome.OK, report.log
    assert report.timing


def test_what_max_autotune_had_compiled_for_it_is_not_compiled_again(judge):
    """Torch's processes may have another ptxas than Triton, and a kernel is found again only by the same one."""
    product = SMALL.replace("torch.relu(x * 2.0 + self.bias)", "x @ (x.T @ (x + self.bias))")
    source, _ = baseline_source(product, "torch.compile max-autotune")
    limits = replace(LIMITS, run_s=DEADLINE_S)
    report = judge(product, source + WAITED + COMPILED_ONCE, Target.CUDA, limits=limits)
    assert report.outcome is Outcome.OK, report.log


@pytest.mark.parametrize(
    ("version", "said"), [(KernelBenchVersion.V01, "not flushed"), (KernelBenchVersion.HEAD, "fl")]
)
def test_kernelbenchs_first_version_leaves_the_cache_alone(judge, version, said):
    request = EvalRequest(
        SMALL, SMALL, Entry.REFERENCE, Target.CUDA, score=Score.KERNELBENCH, kernelbench_version=version
    )
    report = judge.ask(request)
    assert report.outcome is Outcome.OK, report.log
    assert report.checks[Check.CACHE].startswith(said)


def in_turns(names: Iterable[str]) -> list[tuple[str, Target]]:
    """Each name with one of the languages: what does not depend on the language is not tried in both."""
    return list(zip(names, itertools.cycle(LANGUAGES), strict=False))


@pytest.mark.parametrize(("name", "language"), in_turns(FAULTS))
def test_a_fault_of_the_model_is_an_outcome(judge, name, language):
    body, outcome, said = FAULTS[name]
    judge.expect(forward(body, language), language, outcome, said)


@pytest.mark.parametrize(("name", "language"), in_turns(TEXTS))
def test_a_fault_of_the_source_is_an_outcome(judge, name, language):
    change, outcome, said = TEXTS[name]
    judge.expect(change(KERNEL[language]), language, outcome, said)


@pytest.mark.parametrize("name", KERNELS)
def test_a_fault_of_the_kernel_is_an_outcome(judge, name):
    (source, outcome, said), target = KERNELS[name], Target(name.split()[0])
    judge.expect(source, target, outcome, said)
    if "illegal" in name or name.endswith("endless"):  # what can harm the device itself
        assert judge(SMALL, KERNEL[target], target).outcome is Outcome.OK


def test_a_candidate_that_changes_its_inputs_is_rejected(judge):
    report = judge(SMALL, forward("y = self.right(x); x.add_(1); return y", Target.TRITON), Target.TRITON)
    assert (report.outcome, report.rule) == (Outcome.REJECTED, "changed_inputs"), report


@pytest.mark.parametrize("name", SOURCES)
def test_cuda_sources_work_whichever_headers_they_need(judge, name):
    report = judge(SMALL, SOURCES[name], Target.CUDA)
    assert report.outcome is Outcome.OK, report.log


def test_what_was_built_is_found_again(judge):
    source = cuda(factor="(1.0f + 1.0f)")
    assert judge(SMALL, source, Target.CUDA).outcome is Outcome.OK
    built = judge.built()
    again = judge(SMALL, source + "\n# the same extension in another candidate\n", Target.CUDA)
    assert again.outcome is Outcome.OK, again.log
    assert judge.built() == built


def test_an_opponent_is_timed_in_turns_with_the_candidate(judge):
    request = EvalRequest(SMALL, KERNEL[Target.TRITON], target=Target.TRITON, limits=LIMITS)
    report = judge.ask(replace(request, opponent_source=SMALL))
    assert report.outcome is Outcome.OK, report.log
    assert report.opponent
    assert report.timing
    assert len(report.opponent.samples_ms) == len(report.timing.samples_ms)


def test_huge_outputs_are_compared_in_part(judge):
    task, right = TASK.replace("ROWS", str(2**23)), KERNEL[Target.TRITON]  # 2 GB in and 2 GB out
    report = judge(task, right, Target.TRITON)
    assert report.outcome is Outcome.OK, report.log
    assert "some of them, drawn afterwards, compared" in report.checks[Check.TIMING]
    short = right.replace("0.0), mask=at < count)", "0.0), mask=at < count - 1)")
    assert judge(task, short, Target.TRITON).outcome is Outcome.WRONG_RESULT


def test_a_profile_names_the_kernels(judge):
    request = EvalRequest(LARGE, KERNEL[Target.CUDA], target=Target.CUDA, limits=LIMITS, profile_below_ms=1e9)
    profile = judge.ask(request).profile or ""
    sys.stderr.write(profile)
    assert "scale" in profile
    assert "registers" in profile


def test_half_precision(judge):
    report = judge(SMALL, SMALL, Target.CUDA, Entry.REFERENCE, precision=Precision.FP16)
    assert report.outcome is Outcome.OK, report.log


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_used_where_it_is_allowed_and_the_report_says_so(judge, tf32):
    task = SMALL.replace("torch.relu(x * 2.0 + self.bias)", "x @ self.bias.expand(64, 64)").replace("16,", "512,")
    request = EvalRequest(task, task, entry=Entry.REFERENCE, target=Target.CUDA, limits=LIMITS, tf32=tf32)
    report = judge.ask(request)
    assert report.outcome is Outcome.OK, report.log
    assert report.checks[Check.ARITHMETIC] == f"fp32, torch {'with' if tf32 else 'without'} TF32"
    assert Check.PRECISION not in report.checks
    sys.stderr.write(f"\n{report.labels}\n")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_examples_that_models_are_shown_work(judge, language):
    task, kernel = ((TEMPLATES / name).read_text() for name in ("example-model.py", f"example-{language}-new.py"))
    report = judge(task, kernel, language)
    assert report.outcome is Outcome.OK, report.log


def work(command: list[str], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stark_worker", *command], input=text, capture_output=True, text=True, timeout=300
    )


def test_the_device_is_described():
    done = work(["device", "--target", "cuda"], "")
    assert done.returncode == 0, done.stderr
    sys.stderr.write(done.stdout)
    facts = from_json(DeviceFacts, done.stdout)
    assert facts.kind == "cuda"
    assert (facts.architecture or "").startswith("sm_")
    assert all((facts.memory_gb, facts.bandwidth_gb_s, facts.shared_memory_kb, facts.cores))
    assert {"python", "torch", "c++", "cuda", "driver", "nvcc", "triton"} <= facts.toolchain.keys()


def test_the_command_answers_with_a_report():
    done = work(["judge"], to_json(EvalRequest(SMALL, KERNEL[Target.TRITON], target=Target.TRITON, limits=LIMITS)))
    assert done.returncode == 0, done.stderr
    assert from_json(EvalReport, done.stdout).outcome is Outcome.OK


def test_the_device_tells_how_fast_its_memory_is_at_most():
    """In a process of its own: this one has not opened the GPU."""
    code = "from stark_worker.device import cuda; print(cuda.floor_ms(2**33))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert float(done.stdout) > 0.5, done.stderr  # 8 GB at no more than 16 TB/s
