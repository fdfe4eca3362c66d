"""Tasks and kernels whose drop-ins are used in many ways. The kernels are right, and odd in one way each."""

from __future__ import annotations

import types
from dataclasses import dataclass

import torch

from conformance import evaluator
from stark.artefact.drop_in import Winner, format_drop_in
from stark_worker.correctness.nested import pack
from stark_worker.protocol.interface import RIGHT, Interface, ShapeTrial
from stark_worker.protocol.request import Precision, Target

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n\n"


@dataclass(frozen=True)
class Case:
    """A task and a kernel for it; ``any_batch`` if the kernel is right for every batch."""

    name: str
    task: str
    kernel: str
    is_random: bool = False
    changes_state: bool = False
    any_batch: bool = True
    runs: bool = True  # a usual call runs the kernel
    target: Target = Target.CPU

    def drop_in(self) -> str:
        interface, trials = self._interface()
        return format_drop_in(Winner(self.name, self.kernel, self.task, self.target, Precision.FP32, interface, trials))

    def _interface(self) -> tuple[Interface, list[ShapeTrial]]:
        task = types.ModuleType("task")
        exec(self.task, task.__dict__)
        inputs: list[torch.Tensor] = []
        with torch.no_grad(), torch.device(self.target.device_kind):
            arguments, construct = pack(task.get_inputs(), inputs), pack(task.get_init_inputs(), [])
            result = pack(task.Model(*task.get_init_inputs())(*task.get_inputs()), [])
        shapes, dtypes = tuple(tuple(each.shape) for each in inputs), tuple(str(each.dtype)[6:] for each in inputs)
        first = shapes[0][0]
        trials = [
            ShapeTrial(tuple((size, *shape[1:]) if shape[0] == first else shape for shape in shapes), RIGHT)
            for size in (1, 2 * first + 1)
        ]
        flags = {"is_random": self.is_random, "changes_state": self.changes_state}
        return Interface(shapes, dtypes, construct, arguments, result, True, True, **flags), trials * self.any_batch


def model(
    init: str, forward: str, arguments: str = "self, x", constructor: str = "self, n", name: str = "Model"
) -> str:
    return (
        f"class {name}(nn.Module):\n    def __init__({constructor}):\n        super().__init__()\n        {init}\n\n"
        f"    def forward({arguments}):\n        {forward}\n\n\n"
    )


def case(name: str, init: str, forward: str, kernel: str, inputs: str = "[torch.randn(8, 16)]", **more: object) -> Case:
    """A model of one size, and a kernel with the same constructor and another forward()."""
    text = {key: str(more.pop(key)) for key in ("arguments", "constructor") if key in more}
    given = str(more.pop("given", "[16]"))
    made = f"def get_inputs():\n    return {inputs}\n\n\ndef get_init_inputs():\n    return {given}\n"
    task = HEAD + model(init, forward, **text) + made
    new = HEAD + str(more.pop("before", "")) + model(init, kernel, **text, name="ModelNew")
    return Case(name, task, new, **more)  # type: ignore[arg-type]


LINEAR = "self.linear = nn.Linear(n, 12)"
KEPT = (
    "kept = self.__dict__.setdefault('kept', {})\n"
    "        y = kept.setdefault(x.shape, torch.empty_like(x))\n"
    "        return torch.add(x, x, out=y).add_(1)"
)

CASES = [
    Case("native", evaluator.TASK, evaluator.KERNEL),
    case(
        "packed weights",
        LINEAR,
        "return F.relu(self.linear(x))",
        "self.packed = self.__dict__.get('packed', self.linear.weight.t().contiguous())\n"
        "        return (x @ self.packed + self.linear.bias).relu_()",
    ),
    case("the same memory every time", "pass", "return x * 2 + 1", KEPT),
    case("a view of the input", "pass", "return x.view(-1)", "return x.reshape(-1)", runs=False),
    case("the input itself", "pass", "return x + 0", "return x"),
    case(
        "several results",
        LINEAR,
        "h = self.linear(x)\n        return h, {'best': h.argmax(-1), 'parts': [h.sum(), h.mean(-1)]}",
        "h = torch.addmm(self.linear.bias, x, self.linear.weight.t())\n"
        "        return h, {'best': h.max(-1).indices, 'parts': [h.sum(), h.sum(-1) / h.shape[-1]]}",
    ),
    case("results of another layout", "pass", "return (x * 2).t()", "return (x.t() * 2).contiguous()"),
    case(
        "arguments that are no tensors",
        "self.weight = nn.Parameter(torch.rand(n))",
        "return x * self.weight * scale + sum(more)",
        "return torch.addcmul(sum(more), x, self.weight, value=scale)",
        "[torch.randn(8, 16), 2.5, [torch.randn(8, 16), torch.randn(8, 16)]]",
        arguments="self, x, scale, more",
    ),
    case(
        "dropout",
        "self.drop = nn.Dropout(0.5)",
        "return self.drop(x) + 1",
        "return F.dropout(x, 0.5, True).add_(1)",
        is_random=True,
    ),
    case(
        "judged in evaluation mode",
        "self.drop = nn.Dropout(0.5)\n        self.eval()",
        "return self.drop(x) + 1",
        "return x + 1",
        runs=False,
    ),
    case(
        "batch norm",
        "self.norm = nn.BatchNorm1d(n)",
        "return self.norm(x)",
        "return self.norm(x)",
        changes_state=True,
        runs=False,
    ),
    case(
        "modules inside modules",
        "self.inner = nn.Sequential(nn.Linear(n, n), nn.GELU(), nn.Sequential(nn.Linear(n, n)))",
        "return self.inner(x) + x",
        "h = F.gelu(F.linear(x, self.inner[0].weight, self.inner[0].bias))\n"
        "        return F.linear(h, self.inner[2][0].weight, self.inner[2][0].bias).add_(x)",
    ),
    case(
        "tied weights",
        "self.up, self.down = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)\n"
        "        self.down.weight = self.up.weight",
        "return self.down(F.relu(self.up(x)))",
        "return F.linear(F.linear(x, self.up.weight).relu_(), self.down.weight)",
    ),
    case(
        "an input of integers",
        "self.table = nn.Embedding(n, 8)",
        "return self.table(x) * 2",
        "return F.embedding(x, self.table.weight) * 2",
        "[torch.randint(16, (8, 4))]",
    ),
    case(
        "one batch only",
        "pass",
        "return x.softmax(-1)",
        "assert x.shape == (8, 16)\n        return torch.softmax(x, 1)",
        any_batch=False,
    ),
]
