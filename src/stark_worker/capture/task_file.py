"""Makes a task file self-contained: what it takes from packages beside it is put into it by source."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import torch

from stark_worker.capture.faults import CaptureFault, run_user_code
from stark_worker.capture.source.definitions import Definitions
from stark_worker.correctness.model import import_file

PARTS = ("Model", "get_inputs", "get_init_inputs")


def flatten_task(path: Path) -> str:
    """Return the source of a task with its local packages in it."""
    module = import_with_packages(path)
    if missing := [name for name in PARTS if not callable(getattr(module, name, None))]:
        raise CaptureFault(f"{path} defines no {missing[0]}.")
    model = module.Model
    if not isinstance(model, type) or not issubclass(model, torch.nn.Module):
        raise CaptureFault(f"Model in {path} is no class of modules.")
    definitions = Definitions(frozenset({model.__module__.partition(".")[0]}) - {"torch"}, keeps_constructors=True)
    for name in PARTS:
        definitions.define(getattr(module, name), name=name)
    body = "\n\n\n".join(definitions.texts())
    return f"from __future__ import annotations\n\n{definitions.imports()}\n\n\n{body}\n"


def import_with_packages(path: Path) -> ModuleType:
    """Import a file as a part of its package, so that packages beside it and relative imports are found."""
    path = path.resolve()
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").exists():
        root, parts = root.parent, [root.name, *parts]
    sys.path[:0] = [str(root)]
    name = ".".join(parts) if len(parts) > 1 else f"task_{path.stem}"
    read = (lambda: importlib.import_module(name)) if len(parts) > 1 else lambda: import_file(name, path)
    return run_user_code(f"{path.name} cannot be imported", read)
