"""Puts a drop-in in the place of a live module: it takes and returns what the original does, and shares its weights."""

from __future__ import annotations

import hashlib
import io
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stark_worker.capture.calls import Call, rebuild
from stark_worker.capture.capture import Captured
from stark_worker.capture.faults import CaptureFault


class Replacement(nn.Module):
    """The drop-in of a captured module, with the original's parameter names. Other calls run the original.

    A kernel was judged in the original's mode, so the original runs in the other mode too.
    """

    _drop_in: Any
    _original: Any

    def __init__(self, source: str, captured: Captured, original: nn.Module, arguments: Sequence[Any] = ()) -> None:
        super().__init__()
        made = load_source(source).ModelNew(*arguments)
        if (weight := next(original.parameters(), None)) is not None:
            made.to(weight.device, weight.dtype)  # buffers that no checkpoint holds
        made.load_state_dict(original.state_dict(keep_vars=True), assign=True)
        self.__dict__.update(_parameters=made._parameters, _buffers=made._buffers, _modules=made._modules)
        self.__dict__["_drop_in"], self.__dict__["_original"] = made, original
        self._source, self._call, self._captured = source, captured.call, captured
        self._is_training = self.training = original.training

    def train(self, mode: bool = True) -> Replacement:
        """Change the mode. The drop-in keeps the mode that it was judged in, and its modules too."""
        self.training = mode
        self._original.train(mode)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tensors: list[torch.Tensor] = []
        if self.training is self._is_training:
            try:
                if Call.bind(self._original.forward, args, kwargs, tensors) == self._call.arguments:
                    result = self._drop_in(*tensors)
                    return rebuild(self._call.result, result if isinstance(result, tuple | list) else [result])
            except CaptureFault:
                pass  # the original takes what cannot be captured
        return self._original(*args, **kwargs)

    def _apply(self, fn: Any, recurse: bool = True) -> Replacement:
        """Move both sides, and share the weights again."""
        self._original._apply(fn, recurse)
        self._drop_in._apply(fn, recurse)
        self._drop_in.load_state_dict(self._original.state_dict(keep_vars=True), assign=True)
        return self

    def __reduce__(self) -> Any:
        return _make_again, (self._source, self._captured, self._original)


def _make_again(source: str, captured: Captured, original: nn.Module) -> Replacement:
    return Replacement(source, captured, original)


def load_source(source: str) -> types.ModuleType:
    """Run the source of a drop-in as a module of its own."""
    name = f"stark_drop_in_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__file__, sys.modules[name] = f"<{name}>", module
        try:
            exec(compile(source, module.__file__, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def make_module(source: str, task: str) -> nn.Module:
    """Return a model of a drop-in with the arguments that its task gives."""
    return load_source(source).ModelNew(*load_source(task).get_init_inputs())  # type: ignore[no-any-return]


def make_model(task: str) -> nn.Module:
    """Return a task's own model."""
    module = load_source(task)
    return module.Model(*module.get_init_inputs())  # type: ignore[no-any-return]


def save_module(module: nn.Module, path: Path, sources: Sequence[str] = ()) -> None:
    """Write a module with its weights to one file. ``sources`` are those that define its classes."""
    content = io.BytesIO()
    torch.save(module, content)
    torch.save({"sources": list(sources), "module": content.getvalue()}, path)


def load_module(path: Path) -> nn.Module:
    """Read a module that ``save_module`` wrote. Its code runs, so the file has to be trusted."""
    stored = torch.load(path, weights_only=True)
    for source in stored["sources"]:
        load_source(source)
    return torch.load(io.BytesIO(stored["module"]), weights_only=False)  # type: ignore[no-any-return]
