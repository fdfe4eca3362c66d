"""Honest candidates that have to pass unflagged: each way to write one, on each task it fits.

Written out from two tables, so that a further technique or task is a few lines. Every one of them computes what it
returns, on every call, before it returns.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from adversarial.row_tasks import ROW_TASKS, RowTask
from adversarial.zoo import task_source
from stark_worker.protocol.request import EvalRequest, Precision, Target


@dataclass(frozen=True)
class Honest:
    """One candidate, and what its request asks for."""

    name: str
    task: str
    source: str
    precision: Precision = Precision.FP32
    atol: float | None = None
    rtol: float | None = None

    def request(self, target: Target) -> EvalRequest:
        asked = {"precision": self.precision, "atol": self.atol, "rtol": self.rtol}
        return EvalRequest(task_source(self.task), self.source, target=target, **asked)


IMPORTS = """
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.cpp_extension import load_inline
"""

MODEL = """
class ModelNew(nn.Module):
    def __init__(self, *arguments):
        super().__init__()
        features = arguments[0] if arguments else 0
        {setup}
        {more}

    def eager(self, x, w):
        return {eager}

    def library(self, x, w):
        return {library}

    def forward(self, x):
        w = [{weights}]
        {forward}
"""

# Bodies of forward(), with what the constructor needs for them.
PYTHON = {
    "eager": ("return self.eager(x, w)", ""),
    "library": ("return self.library(x, w)", ""),
    "same memory every time": (
        """
        y = self.eager(x, w)
        self.kept = torch.empty_like(y) if self.kept is None else self.kept
        return self.kept.copy_(y)
        """,
        "self.kept = None",
    ),
    "blocks": ("return torch.cat([self.eager(block, w) for block in x.split(128)])", ""),
    "threads": (
        "return torch.cat(list(self.pool.map(lambda block: self.eager(block, w), x.chunk(2))))",
        "self.pool = ThreadPoolExecutor(2)",
    ),
    "tuned at the first call": (
        """
        if self.best is None:
            times = []
            for way in (self.eager, self.library):
                begin = time.perf_counter()
                way(x, w)
                times.append((time.perf_counter() - begin, way))
            self.best = min(times, key=lambda pair: pair[0])[1]
        return self.best(x, w)
        """,
        "self.best = None",
    ),
    "double precision inside": (
        """
        y = self.eager(x.double(), [weight.double() for weight in w])
        return y.float() if y.is_floating_point() else y
        """,
        "",
    ),
}

# Where the task itself is in a shorter format. In eager PyTorch every step would round to it.
MIXED = {
    "library": "return self.library(x, w)",
    "single precision inside": "return self.eager(x.float(), [weight.float() for weight in w]).to(x.dtype)",
}
MIXED_TASKS = ("rms", "softmax", "gelu", "layer_norm")

CPP = """
#include <torch/extension.h>
#include <cmath>
{output}
  const int64_t rows = x.size(0);
  const int n = x.size(1);
  const float* from = x.data_ptr<float>();
  {kind}* to = y.data_ptr<{kind}>();
  {pointers}
  {pragma}
  for (int64_t r = 0; r < rows; ++r) {{
    const float* a = from + r * n;
    {kind}* b = to + r * {stride};
    {body}
  }}
  return y;
}}
"""
NEW_OUTPUT = """torch::Tensor run(torch::Tensor x{parameters}) {{
  auto y = torch::empty({sizes}, x.options().dtype({type}));"""
GIVEN_OUTPUT = """torch::Tensor run(torch::Tensor x{parameters}, torch::Tensor y) {{"""
OPENMP = 'extra_cflags=["-O3", "-fopenmp"], extra_ldflags=["-fopenmp"]'

# For each: whether the output is given, the pragma, and the flags.
COMPILED = {
    "C++": (False, "", 'extra_cflags=["-O3"]'),
    "OpenMP": (False, "#pragma omp parallel for", OPENMP),
    "OpenMP in chunks": (False, "#pragma omp parallel for schedule(dynamic, 16)", OPENMP),
    "OpenMP into kept memory": (True, "#pragma omp parallel for", OPENMP),
}

OTHERS = {
    "matmul: transposed when made": (
        "matmul",
        "self.linear = nn.Linear(*arguments, *arguments)",
        "return torch.addmm(self.linear.bias, x, self.linear.weight.t())",
    ),
    "matmul: weights packed": (
        "matmul",
        "linear = nn.Linear(*arguments, *arguments)\n        self.packed = nn.Parameter(linear.weight.t().contiguous())"
        "\n        self.offset = linear.bias",
        "return x @ self.packed + self.offset",
    ),
    "network: unrolled": (
        "network",
        "n = arguments[0]; self.layers = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(n, n), nn.Tanh())])",
        "for layer in self.layers[::2]:\n            x = layer(x).tanh_()\n        return x",
    ),
    "embedding: rows doubled beforehand": (
        "embedding",
        "table = nn.Embedding(1000, 512)"
        '\n        self.register_buffer("doubled", table.weight.detach() * 2.0, persistent=False)',
        "return F.embedding(x, self.doubled)",
    ),
    "embedding: a table of the same shape, doubled beforehand": (
        "embedding",
        "self.doubled = nn.Parameter(nn.Embedding(1000, 512).weight.detach() * 2.0)",
        "return F.embedding(x, self.doubled)",
    ),
    "embedding: doubled in place": (
        "embedding",
        "self.table = nn.Embedding(1000, 512)",
        "return F.embedding(x, self.table.weight).mul_(2.0)",
    ),
    "embedding: index": ("embedding", "self.table = nn.Embedding(1000, 512)", "return self.table.weight[x] * 2.0"),
    "transpose: permuted": ("transpose", "", "return x.permute(1, 0).clone(memory_format=torch.contiguous_format)"),
    "transpose: into given memory": (
        "transpose",
        "",
        "y = torch.empty(x.shape[::-1])\n        return y.copy_(x.t())",
    ),
    "negate: into given memory": ("negate", "", "return torch.neg(x, out=torch.empty_like(x))"),
    "repeat: expanded, then written": ("repeat", "", "return x.expand(512, *x.shape).contiguous()"),
    "halves: views, as the reference's": ("halves", "", "n = x.shape[-1] // 2\n        return x[:, :n], x[:, n:]"),
    "halves: copies": ("halves", "", "return [half.clone() for half in x.chunk(2, dim=-1)]"),
    "dropout: functional": ("dropout", "", "return F.dropout(x, 0.3, True).add_(1.0)"),
    "best_match: in double precision": (
        "best_match",
        "self.templates = nn.Linear(*arguments)",
        "w, b = self.templates.weight, self.templates.bias"
        "\n        return F.linear(x.double(), w.double(), b.double()).argmax(-1)",
    ),
    "row_max: two outputs": ("row_max", "", "places = x.argmax(-1)\n        return x.amax(-1), places"),
    "masked_scores: added mask": (
        "masked_scores",
        'self.register_buffer("mask", torch.ones(512, 512).triu(1).bool())',
        "return torch.baddbmm(torch.zeros(1), *x).masked_fill_(self.mask, -1e9)",
    ),
    "convolution: library": (
        "convolution",
        "self.convolution = nn.Conv2d(*arguments, 3, padding=1)",
        "return F.conv2d(x, self.convolution.weight, self.convolution.bias, padding=1)",
    ),
    "convolution: a product, weights packed": (
        "convolution",
        "made = nn.Conv2d(*arguments, 3, padding=1)"
        "\n        self.packed, self.offset = nn.Parameter(made.weight.flatten(1).contiguous()), made.bias",
        "y = torch.matmul(self.packed, F.unfold(x, 3, padding=1)).add_(self.offset[:, None])"
        "\n        return y.view(x.shape[0], -1, *x.shape[2:])",
    ),
    "convolution: channels last inside": (
        "convolution",
        "self.convolution = nn.Conv2d(*arguments, 3, padding=1)",
        "return self.convolution(x.to(memory_format=torch.channels_last)).contiguous()",
    ),
    "mse: library": ("mse", "", "return F.mse_loss(*x)"),
    "recurrent: step by step": (
        "recurrent",
        "n = arguments[0]"
        "\n        self.weight = nn.Parameter(torch.randn(n, n) * 0.5 / n**0.5)"
        "\n        self.bias = nn.Parameter(torch.randn(n))",
        "state = torch.zeros_like(x[0])"
        "\n        for step in x:"
        "\n            state = torch.addmm(self.bias + step, state, self.weight).tanh_()"
        "\n        return state",
    ),
    "long_sum: library": ("long_sum", "", "return x.sum(dim=1)"),
    "identity: the input itself": ("identity", "", "return x, x.sum(-1)"),
    "two_scales: written into one tensor": (
        "two_scales",
        "self.linear = nn.Linear(*arguments, *arguments)",
        "y = torch.empty(x.shape[0], 2 * x.shape[1])\n        torch.mul(x, 1e6, out=y[:, : x.shape[1]])"
        "\n        y[:, x.shape[1] :] = self.linear(x).tanh_()\n        return y",
    ),
}
# In a shorter format than the task's, within tolerances that the request sets: what it takes is declared.
SHORT = "return F.linear(x.to({kind}), self.linear.weight.to({kind}), self.linear.bias.to({kind})).float()"
DECLARED = {
    "matmul: bfloat16 inside, as declared": ("torch.bfloat16", 0.1, 0.02),
    "matmul: float16 inside, as declared": ("torch.float16", 0.02, 0.01),
}
# Sums of 8,192 terms, one after the other in single precision: imprecise, and honest.
SERIAL = """
#include <torch/extension.h>
torch::Tensor run(torch::Tensor x) {
  const int64_t rows = x.size(0), n = x.size(1);
  auto y = torch::empty({rows}, x.options());
  for (int64_t row = 0; row < rows; ++row) {
    const float* a = x.data_ptr<float>() + row * n;
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) sum += TERM;
    y.data_ptr<float>()[row] = sum;
  }
  return y;
}
"""
SERIAL_TERMS = {"long_sum": "a[i]", "long_squares": "a[i] * a[i]"}
OTHER_MODEL = """
class ModelNew(nn.Module):
    def __init__(self, *arguments):
        super().__init__()
        {setup}

    def forward(self, {parameters}):
        {forward}
"""
TWO_INPUTS = {"mse": "x = (a, b)", "masked_scores": "x = (a, b.transpose(-1, -2))"}


def corpus() -> list[Honest]:
    """All honest candidates for the CPU, by name."""
    found = [*_in_python(), *mixed(), *_compiled(), *others(), *declared(), *_serial()]
    return sorted(found, key=lambda honest: honest.name)


def row_model(task: RowTask, forward: str, more: str = "") -> str:
    """A candidate's source for a row-wise task."""
    weights = ", ".join(f"self.{name}" for name in task.weights)
    fields = {"setup": task.setup or "pass", "eager": task.eager, "library": task.library, "weights": weights}
    return IMPORTS + MODEL.format(more=more or "pass", forward=_indented(forward), **fields)


def _indented(body: str) -> str:
    return textwrap.indent(textwrap.dedent(body).strip(), " " * 8).strip()


def _in_python() -> Iterator[Honest]:
    for name, task in ROW_TASKS.items():
        for technique, (forward, more) in PYTHON.items():
            yield Honest(f"{name}: {technique}", name, row_model(task, forward, more))


def mixed() -> Iterator[Honest]:
    """Those for tasks in a shorter format, on either kind of device."""
    for name in MIXED_TASKS:
        for precision in (Precision.BF16, Precision.FP16):
            for technique, forward in MIXED.items():
                source = row_model(ROW_TASKS[name], forward)
                yield Honest(f"{name}: {precision}, {technique}", name, source, precision)


def _compiled() -> Iterator[Honest]:
    for name, task in ROW_TASKS.items():
        for technique, (given, pragma, flags) in COMPILED.items():
            library = f'CPP = r"""{_cpp(task, given, pragma)}"""\n'
            more = f'self.module = load_inline("rows", CPP, functions=["run"], {flags}); self.kept = None'
            yield Honest(f"{name}: {technique}", name, library + row_model(task, _calling(task, given), more))


def _serial() -> Iterator[Honest]:
    for task, term in SERIAL_TERMS.items():
        made = 'self.module = load_inline("sums", CPP, functions=["run"], extra_cflags=["-O2"])'
        model = OTHER_MODEL.format(setup=made, parameters="x", forward="return self.module.run(x)")
        library = f'CPP = r"""{SERIAL.replace("TERM", term)}"""\n'
        yield Honest(f"{task}: serial fp32 sums", task, library + IMPORTS + model)


def _cpp(task: RowTask, given: bool, pragma: str) -> str:
    numbers = range(len(task.weights))
    parameters = "".join(f", torch::Tensor weight{number}" for number in numbers)
    sizes = "{x.size(0)}" if task.single else "{x.size(0), x.size(1)}"
    output = (GIVEN_OUTPUT if given else NEW_OUTPUT).format(
        parameters=parameters, sizes=sizes, type="torch::kInt64" if task.integer else "torch::kFloat32"
    )
    return CPP.format(
        output=output,
        kind="int64_t" if task.integer else "float",
        pointers=" ".join(f"const float* w{number} = weight{number}.data_ptr<float>();" for number in numbers),
        pragma=pragma,
        stride="1" if task.single else "n",
        body=task.body,
    )


def _calling(task: RowTask, given: bool) -> str:
    if not given:
        return "return self.module.run(x, *w)"
    shape = "x.shape[0]" if task.single else "x.shape"
    kind = "torch.int64" if task.integer else "torch.float32"
    return f"""
    self.kept = torch.empty({shape}, dtype={kind}) if self.kept is None else self.kept
    return self.module.run(x, *w, self.kept)
    """


def others() -> Iterator[Honest]:
    """Those of tasks that are no rows."""
    for name, (task, setup, forward) in OTHERS.items():
        both = TWO_INPUTS.get(task)
        source = IMPORTS + OTHER_MODEL.format(
            setup=setup or "pass",
            parameters="a, b" if both else "x",
            forward=f"{both}\n        {forward}" if both else forward,
        )
        yield Honest(name, task, source)


def declared() -> Iterator[Honest]:
    """Those in a shorter format than the task's, on either kind of device."""
    setup = "self.linear = nn.Linear(*arguments, *arguments)"
    for name, (kind, atol, rtol) in DECLARED.items():
        source = IMPORTS + OTHER_MODEL.format(setup=setup, parameters="x", forward=SHORT.format(kind=kind))
        yield Honest(name, "matmul", source, atol=atol, rtol=rtol)
