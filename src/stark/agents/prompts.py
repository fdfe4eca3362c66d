"""Fills the paper's prompt templates with a task, a window and a role's instruction."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stark.agents.anchors import BEGIN, END, remove_markers
from stark.agents.template_files import make_environment, render
from stark.agents.windows import Window, make_entry
from stark.core.chat import Message
from stark.core.settings import AnchorSettings, EvaluationSettings, Settings, WindowSettings
from stark.core.task import Task
from stark.core.tree import ROOT_ID, Plan, Role
from stark_worker.protocol.report import DeviceFacts
from stark_worker.protocol.request import Precision, Target

STRATEGIES: tuple[str, ...] = (
    "fuse neighbouring operators so that intermediate results never reach main memory",
    "tile the computation so that each loaded value is used many times from fast memory",
    "load and store wide vectors with neighbouring threads or lanes on neighbouring addresses",
    "reduce within a warp or vector register before any slower kind of reduction",
    "let a vendor library do the matrix product or convolution and fuse only what follows it",
    "use wide fused multiply-adds, or matrix units where they keep the precision, in place of scalar arithmetic",
    "compute in a single pass over the data what now takes several",
    "rewrite the mathematics: cancel, reorder or precompute terms that do not depend on the input",
    "give each thread more independent work to hide latency, and unroll its loop",
    "overlap loading the next tile with computing the current one",
    "change the memory layout, or index so that no copy or transposition is needed",
    "choose block sizes and launch shapes that fill the device for exactly these shapes",
    "cut the number of kernel launches and the Python work between them",
)

_TARGET_WORDS = {
    Target.CUDA: ("CUDA C++", "NVIDIA GPUs", "cuBLAS, cuDNN and CUTLASS"),
    Target.TRITON: ("Triton", "GPUs", "cuBLAS and cuDNN behind PyTorch's operators"),
    Target.CPU: ("C++ with OpenMP", "CPUs", "oneDNN and the BLAS behind PyTorch's operators"),
}
# Tensor cores do not keep float32, and tl.dot rounds to TF32 by default.
_MATRIX_UNITS = {Target.CUDA: ", with the tensor cores", Target.TRITON: ", and the tensor cores behind tl.dot"}
_NO_MATRIX_UNITS = {Target.TRITON: ', and tl.dot with input_precision="ieee"'}
_PRECISIONS = {Precision.FP32: "float32", Precision.BF16: "bfloat16", Precision.FP16: "float16"}


def sample_strategy(rng: random.Random) -> str:
    """Draw a direction for a planner whose temperature cannot vary its ideas."""
    return rng.choice(STRATEGIES)


# -- messages -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromptContext:
    """The facts that all prompts of a run share."""

    task: Task
    device: DeviceFacts
    target: Target
    precision: Precision
    windows: WindowSettings
    anchors: AnchorSettings
    tf32: bool = False
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)

    @classmethod
    def of(cls, task: Task, device: DeviceFacts, settings: Settings) -> PromptContext:
        """The context of a run with these settings."""
        evaluation = settings.evaluation
        conditions = (evaluation.target, evaluation.precision, settings.windows, settings.anchors, evaluation.tf32)
        return cls(task, device, *conditions, evaluation)

    @property
    def allows_matrix_units(self) -> bool:
        """True if tensor cores are precise enough."""
        return self.tf32 or self.precision is not Precision.FP32

    @property
    def precision_in_words(self) -> str:
        also = " (TF32 will do for matrix products and convolutions)" if self.tf32 else ""
        return f"{_PRECISIONS[self.precision]}{also}"


def name_target(context: PromptContext) -> tuple[str, str, str]:
    """Return the language of the kernels, the kind of device, and the libraries worth building on, in words."""
    language, hardware, libraries = _TARGET_WORDS[context.target]
    matrix_units = _MATRIX_UNITS if context.allows_matrix_units else _NO_MATRIX_UNITS
    return language, hardware, libraries + matrix_units.get(context.target, "")


class Prompts:
    """Writes the messages of every role."""

    def __init__(self, templates: Mapping[str, str], context: PromptContext) -> None:
        self._context = context
        self._environment = make_environment(dict(templates))
        language, hardware, libraries = name_target(context)
        self._fixed: dict[str, Any] = {
            "target": str(context.target),
            "language": language,
            "hardware": hardware,
            "libraries": libraries,
            "device": _format_device(context.device),
            "precision": context.precision_in_words,
            "task_name": context.task.name,
            "task_source": context.task.source,
            "hint": context.task.hint,
            "example_model": templates["example_model"],
            "example_new": templates[f"example_{context.target}_new"],
            "anchors": context.anchors.mode != "off",
            "marked": context.anchors.mode == "enforced",
            "begin": BEGIN,
            "end": END,
        }

    def plan(self, window: Window, strategy: str | None) -> list[Message]:
        return self._messages(Role.PLAN, window, strategy=strategy or "")

    def code(self, window: Window, plan: Plan) -> list[Message]:
        return self._messages(Role.CODE, window, advice=plan.advice, scaffold=self._scaffold(plan))

    def debug(self, window: Window) -> list[Message]:
        plan = window.selected.plan or Plan("")
        return self._messages(Role.DEBUG, window, advice=plan.advice, scaffold=self._scaffold(plan))

    def solo(self, window: Window) -> list[Message]:
        return self._messages(Role.SOLO, window)

    def send_back(self, reasons: Sequence[str]) -> Message:
        """Make the message that sends an unusable answer back."""
        return Message("user", self._render_template("send_back", {"reasons": list(reasons)}))

    def _scaffold(self, plan: Plan) -> str:
        """The scaffold if it is grounded; without one the coder changes the latest attempt."""
        if not plan.grounded or plan.scaffold is None or self._context.anchors.mode == "off":
            return ""
        return plan.scaffold if self._context.anchors.mode == "enforced" else remove_markers(plan.scaffold)

    def _messages(self, role: Role, window: Window, **given: str) -> list[Message]:
        selected = window.selected
        values = {
            "role": str(role),
            "latest_source": "" if selected.id == ROOT_ID else selected.source,
            "failed": selected.failed,
            "entries": [make_entry(node, window, self._context.windows) for node in window.shown],
            **given,
        }
        system, user = (self._render_template(key, values) for key in ("system", str(role)))
        return [Message("system", system), Message("user", user)]

    def _render_template(self, key: str, values: dict[str, Any]) -> str:
        empty = {"role": "", "latest_source": "", "failed": False, "entries": [], "reasons": []}
        empty |= {"advice": "", "scaffold": "", "strategy": ""}
        return render(self._environment, key, empty | self._fixed | values)


def _format_device(device: DeviceFacts) -> list[str]:
    known = {
        "Device": device.name,
        "Architecture": device.architecture,
        "Memory": _with_unit(device.memory_gb, "GB"),
        "Memory bandwidth": _with_unit(device.bandwidth_gb_s, "GB/s"),
        "Shared memory per block": _with_unit(device.shared_memory_kb, "KB, 48 KB of them static"),
        "Cores" if device.kind == Target.CPU else "Multiprocessors": device.cores,
        "Toolchain": ", ".join(f"{name} {version}" for name, version in device.toolchain.items()) or None,
    }
    return [f"{name}: {value}" for name, value in known.items() if value is not None]


def _with_unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}"
