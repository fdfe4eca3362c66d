"""Gives a model its weights; both sides use the same code and get the same weights.

Both models are constructed under one seed. Initialisers that leave ones and zeros would hide an unused norm weight or
bias. So for the score ``verified`` a constant parameter gets random values when it is registered or filled. A
constructor that packs its weights then packs those values.
"""

from __future__ import annotations

import contextlib
import enum
import math
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

RUNNING_STATISTICS = ("running_mean", "running_var")  # other constant buffers have a meaning, such as masks
LARGEST_REPLACED = 100.0  # a larger constant means "never", as in a mask

FILL_FUNCTIONS = (
    torch.Tensor.fill_,
    torch.Tensor.zero_,
    torch.nn.init.constant_,
)  # the last hides its fill_ from a mode


class WeightSource(enum.StrEnum):
    """Origin of a candidate's weights: copied from the reference by name, or drawn from the same seed."""

    NAME = "name"
    SEED = "seed"


def seed_generators(seed: int) -> None:
    """Seed the host's generator and those of all GPUs in use.

    ``torch.manual_seed`` also queues the call for absent kinds of devices, which takes a millisecond.
    """
    for generator in (torch.default_generator, *torch.cuda.default_generators):
        generator.manual_seed(seed)


def construct_model(entry: Callable[..., Any], arguments: Sequence[Any], seed: int, nontrivial: bool) -> Any:
    """Construct a model under a seed; reference and candidate are both made here."""
    seed_generators(seed)
    with nontrivial_initialisers(seed) if nontrivial else contextlib.nullcontext():
        return entry(*arguments)


@contextlib.contextmanager
def nontrivial_initialisers(seed: int) -> Iterator[None]:
    """Within this context, constant parameters and running statistics get random values.

    The values follow from the seed, the shape and the number of earlier tensors of that shape. They take nothing from
    torch's generator, so random weights do not change.
    """
    constants = _ConstantReplacer(seed)
    hooks = [
        register_module_parameter_registration_hook(lambda _module, _name, tensor: constants.register(tensor)),
        register_module_buffer_registration_hook(
            lambda _module, name, tensor: constants.register(tensor) if name in RUNNING_STATISTICS else None
        ),
    ]
    try:
        with constants:
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _ConstantReplacer(TorchFunctionMode):
    """Recognises the registered tensors by their memory and intercepts fills."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._seen: Counter[torch.Size] = Counter()
        self._known: dict[tuple[int, int], tuple[weakref.ref[torch.Tensor], int]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in FILL_FUNCTIONS:
            number = self._number(result)
            if number is not None:
                self._replace(result, number)
        return result

    def register(self, tensor: torch.Tensor | None) -> None:
        """Number a tensor, and replace its values if they are constant."""
        if tensor is None or is_lazy(tensor) or not tensor.is_floating_point() or tensor.numel() == 0:
            return
        if tensor.is_meta or 0 in tensor.stride():
            return
        number = self._number(tensor)
        if number is None:
            number = self._seen[tensor.shape]
            self._seen[tensor.shape] += 1
            self._known[_memory(tensor)] = weakref.ref(tensor), number
        # Unwritten memory can look constant too; an initialiser then overwrites these values.
        self._replace(tensor, number)

    def _number(self, tensor: torch.Tensor) -> int | None:
        known, number = self._known.get(_memory(tensor), (None, 0))
        return number if known is not None and known() is not None else None

    def _replace(self, tensor: torch.Tensor, number: int) -> None:
        value = _constant(tensor)
        if value is None or not math.isfinite(value) or abs(value) > LARGEST_REPLACED:
            return
        key = f"{self._seed} {tuple(tensor.shape)} {number}"
        generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
        uniform = torch.rand(tensor.shape, generator=generator, device="cpu")
        with torch.no_grad():
            tensor.copy_((uniform + 0.5) * value if value else uniform - 0.5)  # positive values stay positive


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel()


def _constant(tensor: torch.Tensor) -> float | None:
    """Return the value that all elements have, or None. The first few elements rule out most tensors."""
    with torch.no_grad():
        values = tensor.detach()
        first = values[(0,) * values.ndim]
        few = values.narrow(-1, 0, min(values.shape[-1], 64)) if values.ndim else values
        return float(first) if bool((few == first).all()) and bool((values == first).all()) else None


def copy_weights(own: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> WeightSource:
    """Copy the reference's weights into a model if all names and shapes match.

    Otherwise its own weights stay: its constructor made them from the same seed and may have packed or folded them.
    """
    if own.keys() != given.keys() or not all(_is_same_kind(own[name], given[name]) for name in given):
        return WeightSource.SEED
    with torch.no_grad():
        for name, weight in given.items():
            own[name].copy_(weight)
    return WeightSource.NAME


def _is_same_kind(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype
