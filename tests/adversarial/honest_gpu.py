"""Honest candidates for the GPU: by library, CUDA, graphs, side streams and Triton, tuned and in short formats."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial.honest import IMPORTS, MIXED_TASKS, OTHER_MODEL, Honest, declared, mixed, others, row_model
from adversarial.honest_cuda import kernels
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
# The same for techniques that a few tasks are enough for.
ON_SOME = {
    "graph that returns its own memory": (
        ("rms", "softmax", "argmax"),
        """
        if self.graph is None:
            self.x = x.clone()
            self.eager(self.x, w)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.y = self.eager(self.x, w)
        self.x.copy_(x)
        self.graph.replay()
        return self.y
        """,
        "self.graph = None",
    ),
    "same memory every time": (
        ("rms", "squares", "argmax"),
        """
        y = self.eager(x, w)
        self.kept = torch.empty_like(y) if self.kept is None else self.kept
        return self.kept.copy_(y)
        """,
        "self.kept = None",
    ),
    "two streams, forked and joined": (
        ("rms", "gelu", "cumsum", "softmax"),
        """
        self.streams = [torch.cuda.Stream() for _ in range(2)] if self.streams is None else self.streams
        current, parts = torch.cuda.current_stream(), []
        begun = current.record_event()
        for stream, part in zip(self.streams, x.chunk(2)):
            stream.wait_event(begun)
            with torch.cuda.stream(stream):
                parts.append(self.eager(part, w))
            current.wait_event(stream.record_event())
            parts[-1].record_stream(current)
        return torch.cat(parts)
        """,
        "self.streams = None",
    ),
    "urgent stream, joined": (
        ("softmax",),
        """
        self.stream = torch.cuda.Stream(priority=-1) if self.stream is None else self.stream
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            y = self.library(x, w)
        torch.cuda.current_stream().wait_stream(self.stream)
        y.record_stream(torch.cuda.current_stream())
        return y
        """,
        "self.stream = None",
    ),
    "waits for a value": (
        ("relu", "rms"),
        """
        largest = x.abs().max().item()
        return self.eager(x, w) if largest > 0.0 else self.library(x, w)
        """,
        "",
    ),
    "large temporaries": (
        ("rms", "layer_norm"),
        """
        copies = x.repeat(128, 1)
        y = self.eager(copies, w)
        return y[: x.shape[0]].contiguous()
        """,
        "",
    ),
    "a fill and copies inside": (
        ("relu", "swish"),
        """
        y, copy = torch.zeros_like(x), torch.empty_like(x)
        copy.copy_(x)
        y.copy_(self.eager(copy, w))
        return y
        """,
        "",
    ),
}
STEPS = (
    "n = arguments[0]"
    "\n        self.weight = nn.Parameter(torch.randn(n, n) * 0.5 / n**0.5)"
    "\n        self.bias = nn.Parameter(torch.randn(n))"
    "\n        self.graph = None"
)
STEP_BY_STEP = "state = torch.zeros_like({x}[0])\n{indent}for step in {x}:\n{indent}    state = {step}"
THOUSAND_LAUNCHES = STEP_BY_STEP.format(
    x="x", indent=" " * 8, step="torch.tanh(state @ self.weight + self.bias + step)"
)
FEWER_LAUNCHES = STEP_BY_STEP.format(
    x="x", indent=" " * 8, step="torch.addmm(self.bias + step, state, self.weight).tanh_()"
)
GRAPH_OF_STEPS = (
    "if self.graph is None:"
    "\n            self.x = x.clone()"
    "\n            torch.tanh(self.x[0] @ self.weight)"
    "\n            torch.cuda.synchronize()"
    "\n            self.graph = torch.cuda.CUDAGraph()"
    "\n            with torch.cuda.graph(self.graph):"
    "\n                "
    + STEP_BY_STEP.format(x="self.x", indent=" " * 16, step="torch.tanh(state @ self.weight + self.bias + step)")
    + "\n                self.y = state"
    "\n        self.x.copy_(x)"
    "\n        self.graph.replay()"
    "\n        return self.y.clone()"
)
OTHERS = {
    "recurrent: 1,000 launches": ("recurrent", STEPS, f"{THOUSAND_LAUNCHES}\n        return state"),
    "recurrent: 750 launches": ("recurrent", STEPS, f"{FEWER_LAUNCHES}\n        return state"),
    "recurrent: a graph of 1,000 kernels": ("recurrent", STEPS, GRAPH_OF_STEPS),
    "identity: a copy": ("identity", "", "return x.clone(), x.sum(dim=1)"),
    "halves: views of a copy": ("halves", "", "return x.clone().chunk(2, dim=-1)"),
    "joined: library": ("joined", "", "return torch.cat([x, y])"),
    "joined: stacked": ("joined", "", "return torch.stack([x, y]).view(-1, x.shape[1])"),
    "lower_triangle: library": ("lower_triangle", "", "return x.tril()"),
    "lower_triangle: a mask": (
        "lower_triangle",
        "",
        "i = torch.arange(x.shape[0], device=x.device)\n        return x.masked_fill(i[None] > i[:, None], 0.0)",
    ),
    "padded: zeros and a copy": (
        "padded",
        "",
        "y = x.new_zeros(2048, x.shape[1])\n        y[: x.shape[0]] = x\n        return y",
    ),
    "padded: kept memory, all of it written": (
        "padded",
        "self.kept = None",
        "self.kept = x.new_empty(2048, x.shape[1]) if self.kept is None else self.kept"
        "\n        self.kept[x.shape[0] :].zero_()\n        self.kept[: x.shape[0]] = x\n        return self.kept",
    ),
    "long_sum: a product": ("long_sum", "", "return x @ torch.ones(x.shape[1], device=x.device)"),
    "product: in blocks": (
        "product",
        "self.weight = nn.Parameter(torch.randn(*arguments, *arguments))",
        "return torch.cat([block @ self.weight for block in x.chunk(4)])",
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
    found = [*_in_python(), *mixed(), *_others(), *_cuda(), *kernels()] if target is Target.CUDA else [*_triton()]
    return sorted(found, key=lambda honest: honest.name)


def _in_python() -> Iterator[Honest]:
    for name, task in ROW_TASKS.items():
        for technique, (forward, more) in PYTHON.items():
            yield Honest(f"{name}: {technique}", name, row_model(task, forward, more))
    for technique, (names, forward, more) in ON_SOME.items():
        for name in names:
            yield Honest(f"{name}: {technique}", name, row_model(ROW_TASKS[name], forward, more))


def _others() -> Iterator[Honest]:
    yield from (each for each in others() if each.name not in HOST_ONLY)
    for name, (task, setup, forward) in OTHERS.items():
        parameters = "x, y" if task == "joined" else "x"
        source = OTHER_MODEL.format(setup=setup or "pass", parameters=parameters, forward=forward)
        yield Honest(name, task, IMPORTS + source)
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
