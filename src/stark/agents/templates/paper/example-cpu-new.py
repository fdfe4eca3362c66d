import ctypes

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

# No torch header and no binding code: raw pointers go in, and the file compiles in about a second.
cpp_source = r"""
#include <cstdint>

extern "C" void add(const float* a, const float* b, float* out, int64_t count) {
    #pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < count; ++i) {
        out[i] = a[i] + b[i];
    }
}
"""

library = ctypes.CDLL(
    load_inline(
        name="elementwise_add",
        cpp_sources=[cpp_source],
        extra_cflags=["-O3", "-march=native", "-fopenmp"],
        extra_ldflags=["-fopenmp"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
library.add.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
library.add.restype = None


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = a.contiguous(), b.contiguous()  # keep both alive until the call has returned
        out = torch.empty_like(a)
        library.add(a.data_ptr(), b.data_ptr(), out.data_ptr(), out.numel())
        return out
