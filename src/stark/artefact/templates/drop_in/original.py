"""The original, as it was made and with any weights."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from .facts import ARGUMENTS
from .nested import _build, _flatten
from .sources import Tensors, Weights, _lock, _original

_pristine: dict[str, nn.Module] = {}  # by the arguments of their constructors; their weights hold no data
_pristine_lock = threading.RLock()


class _Plain(nn.Module):
    """Calls the original's forward() of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any) -> Any:
        return _original.Model.forward(self.model, *args)


def _keep_pristine(key: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> nn.Module:
    """Keep a model as its constructor makes it, and return it: what a user does to a model never reaches it."""
    with _lock:
        if key not in _pristine:
            fork = torch.random.fork_rng(range(torch.cuda.device_count()))
            with fork, torch.inference_mode(False), torch.device("cpu"):
                model = _original.Model(*args, **kwargs)
            for child in model.modules():
                for name, weight in child._parameters.items():
                    if weight is not None:
                        child._parameters[name] = nn.Parameter(weight.detach().to("meta"), requires_grad=False)
                for name in child._buffers.keys() - child._non_persistent_buffers_set:
                    if (buffer := child._buffers[name]) is not None:
                        child._buffers[name] = buffer.to("meta")
            _pristine[key] = model
        return _pristine[key]


def _run_original(key: str, weights: Weights, tensors: Tensors) -> list[torch.Tensor]:
    """Run a pristine model with these weights."""
    if key not in _pristine:
        raise RuntimeError("Make a ModelNew with the same arguments first: this program needs it.")
    named = {f"model.{name}": weight for name, weight in weights.items()}
    given = tuple(_build(ARGUMENTS, tensors))
    with _pristine_lock:  # meanwhile the model holds these weights
        return _flatten(functional_call(_Plain(_pristine[key]), named, given, tie_weights=False))


def _weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers. A tied weight appears under all its names."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return parameters | dict(model.named_buffers(remove_duplicate=False))


def _kind(weight: torch.Tensor | None) -> str:
    return "missing" if weight is None else f"{weight.dtype}{list(weight.shape)}"
