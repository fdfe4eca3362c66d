"""Draws the inputs of a task, on the device and in the type that it is judged in."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from stark_worker.correctness.compare import same_bits
from stark_worker.correctness.inputs import INTEGERS, ONE_INTEGER, Change, few_kind, replace_some, secret_seed
from stark_worker.correctness.model import run_task_code
from stark_worker.correctness.nested import pack
from stark_worker.correctness.weights import seed_generators
from stark_worker.protocol.errors import TaskFault

Resize = Callable[[list[torch.Tensor]], list[torch.Tensor]]


class InputSource:
    """Calls ``get_inputs`` and changes what it returns."""

    def __init__(self, get_inputs: Callable[[], Any], device: torch.device, dtype: torch.dtype) -> None:
        self._get_inputs, self._device, self._dtype = get_inputs, device, dtype
        self._resize: Resize = lambda tensors: tensors
        self.arguments = ""  # packed; the tensors are apart
        self.few_kinds: list[str | None] = []  # by input: as which kind its values are replaced
        self.is_fixed = False  # True if no floating-point number is taken from the generator

    def with_sizes(self, resize: Resize) -> InputSource:
        """Return a source of inputs of other sizes."""
        other = copy.copy(self)
        other._resize = resize
        return other

    def find_fixed(self, first: list[torch.Tensor]) -> None:
        """Compare inputs with others that are drawn now: some are the same in every call."""
        others = self.draw(secret_seed())
        fixed = [a.shape == b.shape and same_bits(a, b) for a, b in zip(first, others, strict=True)]
        self.few_kinds = list(map(few_kind, first, fixed))
        self.is_fixed = all(same for each, same in zip(first, fixed, strict=True) if each.is_floating_point())

    def name_unchanged(self, kind: str) -> str:
        """Return a sentence on the integers that are the same in every call if values of this kind are not replaced."""
        numbers = [str(number) for number, each in enumerate(self.few_kinds) if each == kind]
        return f"Input {', '.join(numbers)} never changes. " if numbers and kind in (INTEGERS, ONE_INTEGER) else ""

    def draw(self, seed: int, change: Change | None = None) -> list[torch.Tensor]:
        """Return the inputs that follow from a seed, changed."""
        seed_generators(seed)
        tensors: list[torch.Tensor] = []
        with self._device:
            given = run_task_code("get_inputs()", lambda: list(self._get_inputs()))
        packed = run_task_code("get_inputs()", lambda: pack(given, tensors))
        if packed != (self.arguments or packed):
            raise TaskFault("get_inputs() returns other arguments from call to call; they have to stay the same.")
        self.arguments = packed
        given = [tensor.detach().to(self._device) for tensor in self._resize(tensors)]
        return [self._changed(number, tensor, change) for number, tensor in enumerate(given)]

    def _changed(self, number: int, tensor: torch.Tensor, change: Change | None) -> torch.Tensor:
        changed, dtype = tensor, tensor.dtype
        if tensor.is_floating_point():
            changed, dtype = (change.apply(tensor) if change else tensor), self._dtype
        if change and self.few_kinds[number] in change.few:
            changed = replace_some(changed)
        like = torch.empty_like(tensor, dtype=dtype)
        if changed is tensor and dtype is tensor.dtype and tensor.stride() == like.stride():
            return tensor
        # Keep the layout of the task's own tensor, which the candidate gets too: a dropout mask follows memory order.
        return like.copy_(changed)
