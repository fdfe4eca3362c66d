"""TODO."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from stark_worker.correctness.weights import seed_generators

# torch's CPU allocator words it in the first way on x86-64 and in the second on ARM64.
NO_MEMORY = (
    "can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "std::bad_alloc",
    "CUDA error: out of memory",
    "CUDA out of memory",
)


def forward(model: Callable[..., Any], arguments: list[Any], seed: int) -> Any:
    """One call of a model, the reference's or a candidate's."""
    seed_generators(seed)
    with torch.no_grad():
        return model(*arguments)


def import_file(name: str, path: Path) -> ModuleType:
    """Import a file as a module of that name; a real file, because ``inspect`` and Triton read the source again."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
