"""Honest kernels in CUDA C++ that launch, wait and add up in ways of their own. Their sources are in ``kernels``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from adversarial.honest import Honest
from adversarial.zoo import HERE

SOURCE = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
KERNEL"""
module = load_inline("native", "DECLARED;", CUDA, functions=["run"])


class ModelNew(nn.Module):
    def __init__(self, *arguments):
        super().__init__()
        SETUP

    def forward(self, PARAMETERS):
        FORWARD
'''


@dataclass(frozen=True)
class Native:
    """One kernel: the file of its C++ function ``run``, and the Python around it."""

    task: str
    declared: str
    kernel: str
    forward: str
    setup: str = "pass"
    parameters: str = "x"

    @property
    def source(self) -> str:
        parts = {
            "KERNEL": (HERE / "kernels" / f"{self.kernel}.cu").read_text(encoding="utf-8"),
            "DECLARED": self.declared,
            "SETUP": self.setup,
            "PARAMETERS": self.parameters,
            "FORWARD": self.forward,
        }
        text = SOURCE
        for name, part in parts.items():
            text = text.replace(name, part)
        return text


SPLIT_IN_HALVES = (
    "def split(rows):"
    "\n            scale = torch.exp2(torch.ceil(torch.log2(rows.abs().amax(-1, keepdim=True).clamp(min=1e-30))))"
    "\n            scaled = rows / scale"
    "\n            high = scaled.half()"
    "\n            return high, ((scaled - high.float()) * 2048.0).half(), scale"
    "\n        (ah, al, a), (bh, bl, b) = split(x), split(self.linear.weight)"
    "\n        return module.run(ah, al, bh, bl) * a * b.t() + self.linear.bias"
)

LINEAR = "self.linear = nn.Linear(*arguments, *arguments)"
WEIGHT = "self.weight = nn.Parameter(torch.randn(*arguments, *arguments))"
STEPS = (
    "n = arguments[0]"
    "\n        self.weight = nn.Parameter(torch.randn(n, n) * 0.5 / n**0.5)"
    "\n        self.bias = nn.Parameter(torch.randn(n))"
)
ONE, TWO = "torch::Tensor run(torch::Tensor x)", "torch::Tensor run(torch::Tensor a, torch::Tensor b)"
FOUR = "torch::Tensor run(torch::Tensor ah, torch::Tensor al, torch::Tensor bh, torch::Tensor bl)"
KERNELS = {
    "rms: persistent kernel with a queue": Native(
        "rms",
        "torch::Tensor run(torch::Tensor x, torch::Tensor w)",
        "persistent_rows",
        "return module.run(x, self.weight)",
        "self.weight = nn.Parameter(1.0 + 0.2 * torch.randn(*arguments))",
    ),
    "mse: cooperative launch": Native("mse", TWO, "cooperative_mse", "return module.run(a, b)", parameters="a, b"),
    "long_sum: cooperative launch": Native("long_sum", ONE, "cooperative_sums", "return module.run(x)"),
    "long_sum: serial fp32 sums": Native("long_sum", ONE, "serial_sums", "return module.run(x)"),
    "product: split TF32 on tensor cores": Native(
        "product", TWO, "split_tf32_columns", "return module.run(x, self.weight)", WEIGHT
    ),
    "matmul: split TF32 on tensor cores": Native(
        "matmul", TWO, "split_tf32_rows", "return module.run(x, self.linear.weight) + self.linear.bias", LINEAR
    ),
    "matmul: split FP16 on tensor cores": Native("matmul", FOUR, "split_half", SPLIT_IN_HALVES, LINEAR),
    "matmul: library from C++": Native(
        "matmul",
        "torch::Tensor run(torch::Tensor x, torch::Tensor w, torch::Tensor b)",
        "library",
        "return module.run(x, self.linear.weight, self.linear.bias)",
        LINEAR,
    ),
    "squares: memset and atomics": Native("squares", ONE, "memset_and_atomics", "return module.run(x)"),
    "joined: copies on the device": Native(
        "joined",
        "torch::Tensor run(torch::Tensor x, torch::Tensor y)",
        "copies",
        "return module.run(x, y)",
        parameters="x, y",
    ),
    "joined: rows by the copy engine": Native(
        "joined",
        "torch::Tensor run(torch::Tensor x, torch::Tensor y)",
        "copies_of_rows",
        "return module.run(x, y)",
        parameters="x, y",
    ),
    "transpose: tiles": Native("transpose", ONE, "tiles", "return module.run(x)"),
    "recurrent: one persistent block": Native(
        "recurrent",
        "torch::Tensor run(torch::Tensor x, torch::Tensor w, torch::Tensor bias)",
        "recurrent_block",
        "return module.run(x, self.weight, self.bias)",
        STEPS,
    ),
    "row_max: two outputs of one kernel": Native(
        "row_max", "std::vector<torch::Tensor> run(torch::Tensor x)", "two_outputs", "return tuple(module.run(x))"
    ),
    "negate: native stream, joined": Native("negate", ONE, "native_stream", "return module.run(x)"),
}


def kernels() -> Iterator[Honest]:
    """All of them."""
    for name, native in KERNELS.items():
        yield Honest(name, native.task, native.source)
