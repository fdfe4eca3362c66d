"""Imports a source file and calls a model; the reference and the candidate use the same code."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch

from stark_worker.correctness.nested import pack, structure
from stark_worker.correctness.weights import seed_generators
from stark_worker.protocol.errors import TaskFault

# torch's CPU allocator words it in the first way on x86-64 and in the second on ARM64.
NO_MEMORY = (
    "can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "std::bad_alloc",
    "CUDA error: out of memory",
    "CUDA out of memory",
)
Result = TypeVar("Result")


def forward(model: Callable[..., Any], arguments: list[Any], seed: int) -> Any:
    """Call a model once under a seed, without gradients."""
    seed_generators(seed)
    with torch.no_grad():
        return model(*arguments)


def import_file(name: str, path: Path) -> ModuleType:
    """Import a file as a module of that name; ``inspect`` and Triton read the source file again."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def is_out_of_memory(error: BaseException) -> bool:
    """True if memory ran out. A ``TaskFault`` is judged by its cause. Torch's CPU allocator raises RuntimeError."""
    cause = error.__cause__ if isinstance(error, TaskFault) and error.__cause__ else error
    known = isinstance(cause, MemoryError | torch.cuda.OutOfMemoryError)
    return known or any(sign in str(cause) for sign in NO_MEMORY)


def run_task_code(part: str, step: Callable[[], Result]) -> Result:
    """Run a part of the task's own code; any error it raises becomes a ``TaskFault``."""
    try:
        return step()
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:500]
        raise TaskFault(f"{part} fails: {type(error).__name__}: {text}") from error


def unpack_result(result: Any) -> tuple[list[torch.Tensor], str]:
    """Return the tensors of a reference's result and their structure; raise ``TaskFault`` if they cannot be judged."""
    outputs: list[torch.Tensor] = []
    packed = structure(run_task_code("forward()", lambda: pack(result, outputs)))
    if not outputs or '{"value"' in packed.replace('{"value": null}', ""):
        raise TaskFault("forward() has to return tensors, alone or in tuples, lists or dicts.")
    if any(output.layout != torch.strided for output in outputs):
        raise TaskFault("forward() returns sparse tensors, which cannot be judged; return them dense.")
    return [output.resolve_conj().resolve_neg() for output in outputs], packed
