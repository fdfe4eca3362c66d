"""Fills prompt templates with a task, a window and a role's instruction. Only this module imports jinja2.

A user may replace the system message and each role's template. All templates get the same ``VARIABLES``; those that do
not apply to a role are empty. Source code is a value, so its braces are not expanded.
"""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stark.agents.anchors import BEGIN, END, remove_markers
from stark.agents.windows import Window, make_entry
from stark.core.chat import Message
from stark.core.errors import SettingsError
from stark.core.settings import AnchorSettings, PromptSettings, Settings, WindowSettings
from stark.core.task import Task
from stark.core.tree import ROOT_ID, Plan, Role
from stark_worker.protocol.report import DeviceFacts
from stark_worker.protocol.request import Precision, Target

WORDINGS = ("default", "alternative-1", "alternative-2")

VARIABLES: dict[str, str] = {
    "role": "who is asked: plan, code, debug or solo",
    "target": "the target: cuda, triton or cpu",
    "language": "the language of the kernels in words",
    "hardware": "the kind of device in words",
    "libraries": "the vendor libraries worth building on, in words",
    "device": "list of facts about the device, each a short text",
    "precision": "floating-point type of inputs and weights",
    "task_name": "the task's name",
    "task_source": "the task's source",
    "hint": "what the user wants the agents to know; may be empty",
    "example_model": "the example's Model",
    "example_new": "the example's ModelNew in the target's language",
    "latest_source": "source of the selected node; empty when that is the root",
    "failed": "whether the selected node failed",
    "entries": "the window: list of title, advice, source, source_place, log, result, profile",
    "anchors": "whether markers are asked for",
    "marked": "whether the scaffold is shown with its markers",
    "begin": "the marker that begins a region",
    "end": "the marker that ends a region",
    "advice": "the plan's advice: for code the new one, for debug the one the failing attempt was made from",
    "scaffold": "the plan's source with its comments; empty when it is not grounded",
    "strategy": "a direction for the planner to consider; may be empty",
    "reasons": "why an answer is sent back",
}

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
_ROLE_KEYS = ("plan", "code", "debug", "solo")
_TEMPLATE_FOLDER = files("stark.agents") / "templates"


def sample_strategy(rng: random.Random) -> str:
    """Draw a direction for a planner whose temperature cannot vary its ideas."""
    return rng.choice(STRATEGIES)


# -- templates ------------------------------------------------------------------------------------------------------


def load_templates(settings: PromptSettings) -> dict[str, str]:
    """Load and check the effective templates and examples, everything a run must store to rebuild its prompts."""
    keys = (*_ROLE_KEYS, "send_back", "context", "window")
    templates = {key: _read_built_in(f"{key.replace('_', '-')}.j2") for key in keys}
    templates["example_model"] = _read_built_in("example-model.py")
    for target in Target:
        templates[f"example_{target}_new"] = _read_built_in(f"example-{target}-new.py")
    origins: dict[str, str] = {}
    if settings.system in WORDINGS:
        templates["system"] = _read_built_in(f"system-{settings.system}.j2")
    else:
        origins["system"] = settings.system
    origins |= {key: path for key in _ROLE_KEYS if (path := getattr(settings, key)) is not None}
    for key, path in origins.items():
        templates[key] = _read_user_file(key, path)
    environment = _make_environment(templates)
    for key, path in origins.items():
        _check_template(environment, key, path, templates[key])
    return templates


def _read_built_in(name: str) -> str:
    return (_TEMPLATE_FOLDER / name).read_text(encoding="utf-8")


def _read_user_file(key: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        wordings = f" or one of {', '.join(WORDINGS)}" if key == "system" else ""
        raise SettingsError(
            f"prompts.{key} is {path!r}, which cannot be read as a file: {error}.",
            f"Give a readable template file{wordings}.",
        ) from error


def _check_template(environment: jinja2.Environment, key: str, path: str, text: str) -> None:
    """Refuse a template that can never be rendered, before a run begins."""
    where = f"prompts.{key}: {path}"
    try:
        tree = environment.parse(text)
        environment.compile(tree)
    except jinja2.TemplateSyntaxError as error:
        raise SettingsError(f"{where}, line {error.lineno}: {error.message}.", "Fix the template.") from error
    known = {*VARIABLES, *environment.globals}
    for name in sorted(meta.find_undeclared_variables(tree) - known):
        line = min((node.lineno for node in tree.find_all(nodes.Name) if node.name == name), default=1)
        near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0)[0]
        raise SettingsError(
            f"{where}, line {line}: there is no variable {name!r}; the nearest is {near!r}.",
            f"Known variables: {', '.join(VARIABLES)}.",
        )
    known_templates = environment.list_templates()
    for other in meta.find_referenced_templates(tree):
        if other is not None and other not in known_templates:
            raise SettingsError(
                f"{where}: there is no template {other!r} to include.", f"Known: {', '.join(known_templates)}."
            )


def _make_environment(templates: dict[str, str]) -> jinja2.Environment:
    return _cached_environment(frozenset(templates.items()))


@lru_cache(maxsize=8)
def _cached_environment(templates: frozenset[tuple[str, str]]) -> jinja2.Environment:
    """Share one environment between the runs of a grid: compiling templates is far slower than filling them."""
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.DictLoader({f"{key}.j2": text for key, text in templates}),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["fenced"] = _fence_block
    return environment


def _fence_block(text: str, language: str = "python") -> str:
    """Fence the text with more backticks than any run of them inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


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

    @classmethod
    def of(cls, task: Task, device: DeviceFacts, settings: Settings) -> PromptContext:
        """The context of a run with these settings."""
        evaluation = settings.evaluation
        conditions = (evaluation.target, evaluation.precision, settings.windows, settings.anchors, evaluation.tf32)
        return cls(task, device, *conditions)

    @property
    def allows_matrix_units(self) -> bool:
        """True if tensor cores are precise enough."""
        return self.tf32 or self.precision is not Precision.FP32

    @property
    def precision_in_words(self) -> str:
        also = " (TF32 will do for matrix products and convolutions)" if self.tf32 else ""
        return f"{_PRECISIONS[self.precision]}{also}"


class Prompts:
    """Writes the messages of every role."""

    def __init__(self, templates: dict[str, str], context: PromptContext) -> None:
        self._context = context
        self._environment = _make_environment(templates)
        language, hardware, libraries = _TARGET_WORDS[context.target]
        matrix_units = _MATRIX_UNITS if context.allows_matrix_units else _NO_MATRIX_UNITS
        self._fixed: dict[str, Any] = {
            "target": str(context.target),
            "language": language,
            "hardware": hardware,
            "libraries": libraries + matrix_units.get(context.target, ""),
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
        try:
            return self._environment.get_template(f"{key}.j2").render(empty | self._fixed | values).strip() + "\n"
        except jinja2.TemplateError as error:
            raise SettingsError(
                f"The template prompts.{key} cannot be rendered: {error}.", "Fix the template."
            ) from error


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
