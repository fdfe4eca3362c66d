"""The kernel's module with the weights of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .changes import _is_same
from .facts import CAST, DEVICE, KERNEL
from .original import _kind, _pristine, _weights_of
from .sources import Tensors, Weights, _own_names, _run_source, _Unfit

SCALES = (0.5, 0.02)  # by which weights are changed on trial; large results can overflow
LEAST_MOVED, OFF_SHARE = 1e-3, 0.1  # of a result by changed weights: a module that noticed them is closer
MAX_TRIED = 64  # weights; a kernel with more is made again when one is written


@contextlib.contextmanager
def _changed(weights: Tensors, scale: float) -> Iterator[None]:
    """Change weights, each number by about its own size times ``scale``, and set them back."""
    kept = [weight.clone() for weight in weights]
    try:
        for number, weight in enumerate(weights):
            weight.copy_(_alter(weight, scale, number))
        yield
    finally:
        for weight, old in zip(weights, kept, strict=True):
            weight.copy_(old)


def _alter(weight: torch.Tensor, scale: float, seed: int) -> torch.Tensor:
    if weight.dtype == torch.bool:
        return ~weight
    if not _is_inexact(weight):
        return weight.flatten().flip(0).view_as(weight)  # the same numbers: they may be indices
    numbers = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    return weight + (scale * (weight.abs().mean() + 0.01) * numbers.to(weight.device)).to(weight.dtype)


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return how far two results are apart, as a share of the larger one; of integers how many differ."""
    if one.shape != other.shape or not one.numel():
        return float(one.shape != other.shape)
    if not _is_inexact(one):
        return float((one != other).float().mean())
    share = (one - other).abs().max() / (other.abs().max() + 1e-30)
    return float(share) if bool(share.isfinite()) else float("inf")


def _make_module(key: str, args: Sequence[Any], kwargs: Mapping[str, Any], weights: Weights) -> nn.Module:
    """Make the kernel's module as it was judged, with these weights in place of its own."""
    device = next((weight.device for weight in weights.values()), torch.device(DEVICE))
    indices = [device.index or 0] if device.type == "cuda" else []
    with _own_names(), torch.inference_mode(False), torch.random.fork_rng(indices), torch.device("cpu"):
        module: nn.Module = _run_source("kernel", KERNEL).ModelNew(*args, **kwargs).to(device, CAST)
    pristine, kept = _pristine[key], module.state_dict()
    own = {name: each for name, each in _weights_of(module).items() if name in weights or name in kept}  # no scratch
    for name in {**own, **weights}:
        if name not in own and name not in pristine.state_dict() and name in weights:
            if not _is_same(weights[name], _weights_of(pristine)[name]):
                raise _Unfit(f"the buffer {name} was changed, which the kernel computes itself")
        elif _kind(own.get(name)) != _kind(weights.get(name)):
            raise _Unfit(f"{name} is {_kind(weights.get(name))}; the kernel was judged with {_kind(own.get(name))}")
    memory: dict[int, int] = {}
    with torch.inference_mode(False):
        for name in own.keys() & weights.keys():
            if memory.setdefault(id(own[name]), weights[name].data_ptr()) != weights[name].data_ptr():
                raise _Unfit(f"{name} is not tied to another weight, as it was when the kernel was judged")
            own[name].requires_grad_(False)
            own[name].data = weights[name].detach()
    return module


def _is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
