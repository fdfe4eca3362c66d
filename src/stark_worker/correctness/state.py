"""Finds out if a call changes more than its results."""

from __future__ import annotations

import copy
from typing import Any

import torch

from stark_worker.correctness.reference import Reference


def changes_state(reference: Reference) -> bool:
    """True if a call of the task's model changes its inputs, weights, buffers or numbers that it keeps."""
    if reference.first.written:
        return True
    model = copy.deepcopy(reference.model)
    before = _state(model)
    reference.run(model, reference.first.inputs, reference.first.seed)
    return _state(model) != before


def _state(model: torch.nn.Module) -> list[Any]:
    """Return all numbers that a model keeps, and how often each of its tensors was written."""
    numbers = [
        {name: value for name, value in vars(module).items() if isinstance(value, int | float | str | None)}
        for module in model.modules()
    ]
    return [numbers, [(id(tensor), tensor._version) for tensor in (*model.parameters(), *model.buffers())]]
