"""Measures how long a candidate's extension takes to build, by torch's own toolchain and by ours, in seconds.

    python benchmarks/perf/build.py [--samples 3] [--stock 1] [--save]

Each sample is a fresh process with an empty cache, and counts from the call of ``load_inline`` to a module in hand.
Once more with headers that were made ready, as they are from the second candidate with the same flags on. Ordinary
candidates are unmodified ``torch/extension.h`` sources; the light form is plain C without torch. What is built is
called and its result compared before the time counts; a slip counts until it is reported. CUDA is measured if
there is a device.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record

CPP = """
torch::Tensor add(torch::Tensor a, torch::Tensor b) {
  TORCH_CHECK(a.is_contiguous() && b.is_contiguous() && a.sizes() == b.sizes(), "two alike tensors are expected");
  auto out = torch::empty_like(a);
  const float* x = a.data_ptr<float>();
  const float* y = b.data_ptr<float>();
  float* z = out.data_ptr<float>();
  #pragma omp parallel for
  for (int64_t i = 0; i < a.numel(); ++i) z[i] = x[i] + y[i];
  return out;
}
"""
LIGHT = """
#include <cstdint>
extern "C" void add(const float* a, const float* b, float* out, int64_t count) {
  #pragma omp parallel for simd
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}
"""
CUDA = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
__global__ void add_kernel(const float* a, const float* b, float* out, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = a[i] + b[i];
}
torch::Tensor add(torch::Tensor a, torch::Tensor b) {
  TORCH_CHECK(a.is_cuda() && b.is_cuda(), "CUDA tensors are expected");
  auto out = torch::empty_like(a);
  const int64_t count = out.numel();
  add_kernel<<<(count + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), count);
  return out;
}
"""
OPENMP: dict[str, Any] = {"extra_cflags": ["-O3", "-fopenmp"], "extra_ldflags": ["-fopenmp"]}
CASES: dict[str, dict[str, Any]] = {
    "cpp ordinary": {"cpp_sources": CPP, "functions": ["add"], **OPENMP},
    "cpp light": {"cpp_sources": LIGHT, "no_implicit_headers": True, "is_python_module": False, **OPENMP},
    "cuda ordinary": {
        "cpp_sources": "torch::Tensor add(torch::Tensor a, torch::Tensor b);",
        "cuda_sources": CUDA,
        "functions": ["add"],
        "extra_cuda_cflags": ["-O3"],
    },
}
# The same with a semicolon missing: how long until it is reported.
SLIPS = {
    f"{case}, a slip": {
        name: value.replace("empty_like(a);", "empty_like(a)") if isinstance(value, str) else value
        for name, value in CASES[case].items()
    }
    for case in ("cpp ordinary", "cuda ordinary")
}


def one(case: str, mode: str) -> float:
    """Build one case in this process, check what it computes and return the seconds of the build."""
    import torch
    from torch.utils import cpp_extension

    from stark_worker.compiler import extension

    where = "cuda" if case.startswith("cuda") else "cpu"
    a, b = torch.randn(2, 1000, device=where)
    with tempfile.TemporaryDirectory() as cache:
        shared = Path(cache, "shared")
        if mode == "ready":
            extension.install(lambda asked: precompile_headers(asked, shared))
            cpp_extension.load_inline("measured", **(CASES | SLIPS)[case])
        extension.install(extension.cached_builder(shared, Path(cache)), "stock" if mode == "stock" else "fast")
        begin = time.perf_counter()
        try:
            built = cpp_extension.load_inline("measured", **(CASES | SLIPS)[case])
        except RuntimeError as error:
            if case not in SLIPS or "expected" not in str(error):
                raise
            return time.perf_counter() - begin
        seconds = time.perf_counter() - begin
        if isinstance(built, str):
            out = torch.empty_like(a)
            pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, out)]
            ctypes.CDLL(built).add(*pointers, ctypes.c_int64(1000))
        else:
            out = built.add(a, b)
    if not torch.equal(out, a + b):
        raise SystemExit(f"{case} built {mode} computes something else")
    return seconds


def precompile_headers(extension: Any, shared: Path) -> None:
    """Have the headers in the cache with which an extension begins."""
    if key := extension.headers_key:
        (shared / key).mkdir(parents=True)
        extension.precompile_headers(shared / key)


def measure(case: str, mode: str, samples: int) -> list[float]:
    command = [sys.executable, "-W", "ignore", __file__, "--one", case, mode]
    runs = [subprocess.run(command, capture_output=True, text=True) for _ in range(samples)]
    for run in runs:
        if run.returncode:
            raise SystemExit(f"{case}, {mode}: {run.stderr[-2000:]}")
    return [float(run.stdout.split()[-1]) for run in runs]


def device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=3, help="of each case built our way")
    parser.add_argument("--stock", type=int, default=1, help="of each case built torch's way")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(one(*options.one))
        return
    name = device()
    results: dict[str, dict[str, list[float]]] = {}
    for case in CASES | SLIPS:
        if case.startswith("cuda") and name == "cpu":
            continue
        counts = {"stock": options.stock, "fast": options.samples, "ready": options.samples}
        results[case] = {mode: measure(case, mode, count) for mode, count in counts.items()}
        stock, fast, ready = (statistics.median(taken) for taken in results[case].values())
        print(f"{case:22s} stock {stock:6.2f} s   fast {fast:5.2f} s   headers ready {ready:5.2f} s", flush=True)
    if options.save:
        record.write(record.result_file("build", name), record.facts(name) | {"seconds": results})


if __name__ == "__main__":
    main()
