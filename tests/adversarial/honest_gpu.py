"""Honest candidates for the GPU: by library, CUDA, graphs, side streams and Triton, tuned and in short formats."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial.honest import MIXED_TASKS, Honest, declared, mixed, others, row_model
from adversarial.row_tasks import ROW_TASKS, RowTask
from stark_worker.protocol.request import Precision, Target

# Bodies of forward(), with what the constructor needs for them.
PYTHON = {
    "eager": ("return self.eager(x, w)", ""),
    "library": ("return self.library(x, w)", ""),
    "side stream, joined": (
        """
        self.stream = torch.cuda.Stream() if self.stream is None else self.stream
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            y = self.eager(x, w)
        torch.cuda.current_stream().wait_stream(self.stream)
        y.record_stream(torch.cuda.current_stream())
        return y
        """,
        "self.stream = None",
    ),
    "graph that copies its input": (
        """
        if self.graph is None:
            self.x = x.clone()
            warm = torch.cuda.Stream()
            warm.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(warm):
                self.eager(self.x, w)
            torch.cuda.current_stream().wait_stream(warm)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.y = self.eager(self.x, w)
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
        """,
        "self.graph = None",
    ),
    "tuned at the first call": (
        """
        if self.best is None:
            times = []
            for way in (self.eager, self.library):
                way(x, w)
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                way(x, w)
                end.record()
                end.synchronize()
                times.append((begin.elapsed_time(end), way))
            self.best = min(times, key=lambda pair: pair[0])[1]
        return self.best(x, w)
        """,
        "self.best = None",
    ),
}
# These make tensors of their own on the host.
HOST_ONLY = ("transpose: into given memory", "masked_scores: added mask", "two_scales: written into one tensor")

CUDA = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
__global__ void rows_kernel(const float* from, {kind}* to, int64_t rows, int n{pointers}) {{
  const int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  const float* a = from + r * n;
  {kind}* b = to + r * {stride};
  {body}
}}
torch::Tensor run(torch::Tensor x{parameters}) {{
  auto y = torch::empty({sizes}, x.options().dtype({type}));
  const int64_t rows = x.size(0);
  rows_kernel<<<(rows + 63) / 64, 64, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), y.data_ptr<{kind}>(), rows, static_cast<int>(x.size(1)){arguments});
  return y;
}}
"""

TRITON_IMPORTS = """
import triton
import triton.language as tl


@triton.jit
def rows_kernel(from_, to, w0, w1, n: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, STEP)
    a = tl.load(from_ + row * n + i, mask=i < n, other=0.0)
    {body}
"""
TUNED = """
@triton.autotune(configs=[triton.Config({}, num_warps=warps) for warps in (1, 2, 4, 8)], key=["n"])
@triton.jit
"""
STORE = "tl.store(to + row * n + i, b, mask=i < n)"
TRITON = {
    "relu": f"b = tl.maximum(a, 0.0)\n    {STORE}",
    "swish": f"b = a * tl.sigmoid(a)\n    {STORE}",
    "gelu": f"b = 0.5 * a * (1.0 + tl.erf(a * 0.7071067811865476))\n    {STORE}",
    "affine": "b = a * tl.load(w0 + i, mask=i < n) + tl.load(w1 + i, mask=i < n)\n"
    f"    b = tl.minimum(tl.maximum(b, -1.0), 1.0)\n    {STORE}",
    "rms": f"b = a * tl.rsqrt(tl.sum(a * a) / n + 1e-5) * tl.load(w0 + i, mask=i < n)\n    {STORE}",
    "l2": f"b = a / tl.sqrt(tl.sum(a * a))\n    {STORE}",
    "softmax": f"e = tl.exp(a - tl.max(a))\n    b = e / tl.sum(e)\n    {STORE}",
    "squares": "tl.store(to + row, tl.sum(a * a))",
}


def corpus(target: Target) -> list[Honest]:
    """All honest candidates for this target, by name."""
    found = [*_in_python(), *mixed(), *_others(), *_cuda()] if target is Target.CUDA else [*_triton()]
    return sorted(found, key=lambda honest: honest.name)


def _in_python() -> Iterator[Honest]:
    for name, task in ROW_TASKS.items():
        for technique, (forward, more) in PYTHON.items():
            yield Honest(f"{name}: {technique}", name, row_model(task, forward, more))


def _others() -> Iterator[Honest]:
    yield from (each for each in others() if each.name not in HOST_ONLY)
    yield from declared()


def _cuda() -> Iterator[Honest]:
    for name, task in ROW_TASKS.items():
        parameters = _each(task, ", torch::Tensor weight{}")
        declared = f"torch::Tensor run(torch::Tensor x{parameters});"
        more = f'self.module = load_inline("rows", "{declared}", CUDA, functions=["run"])'
        library = f'CUDA = r"""{_kernel(task, parameters)}"""\n'
        yield Honest(f"{name}: CUDA", name, library + row_model(task, "return self.module.run(x, *w)", more))


def _kernel(task: RowTask, parameters: str) -> str:
    return CUDA.format(
        kind="int64_t" if task.integer else "float",
        type="torch::kInt64" if task.integer else "torch::kFloat32",
        stride="1" if task.single else "n",
        sizes="{x.size(0)}" if task.single else "{x.size(0), x.size(1)}",
        parameters=parameters,
        pointers=_each(task, ", const float* w{}"),
        arguments=_each(task, ", weight{}.data_ptr<float>()"),
        body=task.body,
    )


def _each(task: RowTask, text: str) -> str:
    return "".join(text.format(number) for number in range(len(task.weights)))


def _triton() -> Iterator[Honest]:
    for name, body in TRITON.items():
        task = ROW_TASKS[name]
        made = "torch.empty(x.shape[0], device=x.device)" if task.single else "torch.empty_like(x)"
        weights = [f"w[{number}]" if number < len(task.weights) else "x" for number in range(2)]
        call = f"rows_kernel[(x.shape[0],)](x, y, {', '.join(weights)}, n=x.shape[1], STEP=STEP)"
        step = "STEP = triton.next_power_of_2(x.shape[1])"
        kept = f"self.kept = {made} if self.kept is None else self.kept"
        fresh = [f"y = {made}", step, call, "return y"]
        kernel = TRITON_IMPORTS.format(body=body)
        ways = {
            "Triton": (kernel, fresh),
            "Triton into kept memory": (kernel, [kept, "y = self.kept", step, call, "return y"]),
            "Triton, tuned": (kernel.replace("\n@triton.jit\n", TUNED), fresh),
        }
        for technique, (source, lines) in ways.items():
            yield Honest(f"{name}: {technique}", name, source + row_model(task, "\n".join(lines), "self.kept = None"))
        if name in MIXED_TASKS:
            kernel = TRITON_IMPORTS.format(body=f"a = a.to(tl.float32)\n    {body}")
            for precision in (Precision.BF16, Precision.FP16):
                source = kernel + row_model(task, "\n".join(fresh))
                yield Honest(f"{name}: {precision}, Triton", name, source, precision)
