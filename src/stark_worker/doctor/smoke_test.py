"""A very small task and a kernel for it in each language, for trying a machine out. No torch."""

from __future__ import annotations

from stark_worker.protocol.request import Target

TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x * 2.0


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
"""

_CPU = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP = """
torch::Tensor twice(torch::Tensor x) {
    auto out = torch::empty_like(x);
    const float* from = x.data_ptr<float>();
    float* to = out.data_ptr<float>();
    #pragma omp parallel for
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = 2.0f * from[i];
    return out;
}
"""
library = load_inline("sample", CPP, functions=["twice"], extra_cflags=["-fopenmp"])


class ModelNew(nn.Module):
    def forward(self, x):
        return library.twice(x)
'''

_CUDA = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = """
__global__ void twice_kernel(const float* from, float* to, int64_t count) {
    const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (i < count) to[i] = 2.0f * from[i];
}
torch::Tensor twice(torch::Tensor x) {
    auto out = torch::empty_like(x);
    const int64_t count = x.numel();
    twice_kernel<<<(count + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), count);
    return out;
}
"""
library = load_inline("sample", "torch::Tensor twice(torch::Tensor x);", cuda_sources=CUDA, functions=["twice"])


class ModelNew(nn.Module):
    def forward(self, x):
        return library.twice(x)
'''

_TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def twice_kernel(x_ptr, out_ptr, count, block: tl.constexpr):
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    mask = offsets < count
    tl.store(out_ptr + offsets, 2.0 * tl.load(x_ptr + offsets, mask=mask), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        twice_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), block=1024)
        return out
"""

KERNELS = {Target.CPU: _CPU, Target.CUDA: _CUDA, Target.TRITON: _TRITON}
