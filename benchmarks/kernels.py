"""Tasks and candidates that benchmarks judge: GELU in all three languages, and eager models of other kinds.

All are ordinary sources, as a model would write them: extensions through ``load_inline`` with ``torch/extension.h``.
"""

from __future__ import annotations

from typing import Any

from stark_worker.protocol.request import Target

_TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        PREPARE

    def forward(self, x):
        return RESULT

def get_inputs():
    return [torch.rand(ROWS, COLUMNS)]

def get_init_inputs():
    return []
"""


def task(result: str, rows: int, columns: int, prepare: str = "pass") -> str:
    """A task whose model computes this expression of ``x``."""
    text = _TASK.replace("PREPARE", prepare).replace("RESULT", result)
    return text.replace("ROWS", str(rows)).replace("COLUMNS", str(columns))


def gelu_task(rows: int, columns: int) -> str:
    return task("nn.functional.gelu(x)", rows, columns)


_CUDA = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__global__ void gelu_kernel(const float* x, float* out, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}

torch::Tensor gelu(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "a contiguous CUDA tensor is expected");
  auto out = torch::empty_like(x);
  const int threads = THREADS;
  const int64_t blocks = (x.numel() + threads - 1) / threads;
  gelu_kernel<<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
"""
module = load_inline("gelu", cpp_sources="torch::Tensor gelu(torch::Tensor x);", cuda_sources=CUDA, functions=["gelu"],
                     extra_cuda_cflags=["-O3"])

class ModelNew(nn.Module):
    def forward(self, x):
        return module.gelu(x)
'''
_TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def gelu_kernel(x_ptr, out_ptr, count, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(x_ptr + at, mask=at < count)
    tl.store(out_ptr + at, 0.5 * x * (1.0 + tl.math.erf(x * 0.70710678)), mask=at < count)

class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        gelu_kernel[(triton.cdiv(x.numel(), THREADS),)](x, out, x.numel(), block=THREADS)
        return out
"""
_CPP = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>
#include <cmath>

torch::Tensor gelu(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous(), "a contiguous tensor is expected");
  auto out = torch::empty_like(x);
  const float* from = x.data_ptr<float>();
  float* to = out.data_ptr<float>();
  #pragma omp parallel for schedule(static, THREADS)
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = 0.5f * from[i] * (1.0f + std::erf(from[i] * 0.70710678f));
  return out;
}
"""
module = load_inline("gelu", cpp_sources=CPP, functions=["gelu"], extra_cflags=["-O3", "-fopenmp"],
                     extra_ldflags=["-fopenmp"])

class ModelNew(nn.Module):
    def forward(self, x):
        return module.gelu(x)
'''
_GELU = {Target.CUDA: _CUDA, Target.TRITON: _TRITON, Target.CPU: _CPP}
_STORES = {Target.CUDA: ("x", "out[i]"), Target.CPU: ("from", "to[i]")}
_COPYING = '''
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__global__ void copy_kernel(const float* x, float* out, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = x[i];
}

torch::Tensor copy(torch::Tensor x) {
  auto out = torch::empty_like(x);
  const int64_t blocks = (x.numel() + THREADS - 1) / THREADS;
  copy_kernel<<<blocks, THREADS, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
"""
module = load_inline("copy", cpp_sources="torch::Tensor copy(torch::Tensor x);", cuda_sources=CUDA, functions=["copy"])

class ModelNew(Model):
    def forward(self, *inputs):
        return module.copy(super().forward(*inputs).contiguous())
'''


def gelu(target: Target, threads: int = 1024) -> str:
    """A candidate for ``gelu_task``; with another number of threads it is another source."""
    return _GELU[target].replace("THREADS", str(threads))


def endless(target: Target, threads: int) -> str:
    """A candidate for ``gelu_task`` whose kernel never ends."""
    source, store = _STORES[target]
    forever = f"for (volatile const float* p = {source}; *p == *p;) "
    return gelu(target, threads).replace(f"{store} =", f"{forever}{store} =")


def faulting(target: Target, threads: int) -> str:
    """A candidate for ``gelu_task`` that writes to memory which nothing owns."""
    _, store = _STORES[target]
    return gelu(target, threads).replace(store, store.replace("[i]", "[i + (int64_t(1) << 40)]"))


def with_block_size(target: Target) -> str:
    """A candidate for ``gelu_task`` with the constant BLOCK, its number of threads."""
    source = _GELU[target].replace("THREADS", "BLOCK")
    return 'CONSTANTS = {"BLOCK": 256}\n' + source.replace('["-O3"', """["-O3", f"-DBLOCK={CONSTANTS['BLOCK']}\"""")


def copying(task: str, threads: int) -> str:
    """A candidate for any task with one result in fp32: its model, then a CUDA kernel that copies the result."""
    return task + _COPYING.replace("THREADS", str(threads))


def timed_kernels() -> dict[str, dict[str, Any]]:
    """Kernels from about 0.15 to 3 ms on a fast GPU: eager ones, Triton and CUDA."""

    def eager(result: str, rows: int, columns: int, prepare: str = "pass") -> dict[str, Any]:
        text = task(result, rows, columns, prepare)
        return {"task": text, "candidate": text, "entry": "Model"}

    def own(target: Target, rows: int) -> dict[str, Any]:
        return {"task": gelu_task(rows, 2**16), "candidate": gelu(target), "entry": "ModelNew"}

    return {
        "eager matmul 2048": eager("x @ x", 2048, 2048),
        "eager matmul 4096": eager("x @ x", 4096, 4096),
        "eager relu 128 M": eager("torch.relu(x)", 2**11, 2**16),
        "eager x * 2 + 1 128 M": eager("x * 2.0 + 1.0", 2**11, 2**16),
        "eager softmax 128 M": eager("torch.softmax(x, dim=1)", 2**14, 2**13),
        "eager layer norm 128 M": eager("self.norm(x)", 2**14, 2**13, "self.norm = nn.LayerNorm(2**13)"),
        "triton gelu 64 M": own(Target.TRITON, 2**10),
        "triton gelu 128 M": own(Target.TRITON, 2**11),
        "triton gelu 512 M": own(Target.TRITON, 2**13),
        "cuda gelu 256 M": own(Target.CUDA, 2**12),
    }
