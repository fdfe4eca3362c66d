"""Packs nested values of tensors, numbers and text as JSON, and compares their structure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


def to_double(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values in double precision; integers unchanged."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def pack(value: Any, tensors: list[torch.Tensor]) -> str:
    """Write a value as JSON; append its tensors to ``tensors`` and number them in the text."""
    return json.dumps(_pack(value, tensors))


def _pack(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_pack(item, tensors) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[key, _pack(item, tensors)] for key, item in value.items()]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"a {type(value).__name__} cannot be handed over; tensors, numbers, text, lists and dicts can")


def unpack(packed: str, tensors: Sequence[torch.Tensor]) -> Any:
    """Return the value that ``pack`` wrote, with these tensors in place of the numbers."""
    return _unpack(json.loads(packed), tensors)


def _unpack(data: dict[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
    ((kind, content),) = data.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _unpack(item, tensors) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_unpack(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    return content


@dataclass(frozen=True)
class Layout:
    """Strides of a result; ``shares`` is True if it shares memory with its arguments."""

    stride: tuple[int, ...]
    shares: bool


def layout(result: torch.Tensor, given: Sequence[torch.Tensor]) -> Layout:
    """Return the layout, without the strides of dimensions with one element: they mean nothing."""
    stride = tuple(step for step, size in zip(result.stride(), result.shape, strict=True) if size > 1)
    own = result.untyped_storage().data_ptr()
    return Layout(stride, result.numel() > 0 and any(own == other.untyped_storage().data_ptr() for other in given))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return all tensors in lists, tuples and dicts."""
    found: list[torch.Tensor] = []
    pack(value, found)
    return found


def is_new(output: torch.Tensor, arguments: list[Any], model: torch.nn.Module) -> bool:
    """True if a call has to write this output: it is no view of existing tensors and repeats nothing."""
    kept = [
        tensor for module in model.modules() for tensor in vars(module).values() if isinstance(tensor, torch.Tensor)
    ]
    lies = layout(output, [*tensors_in(arguments), *model.parameters(), *model.buffers(), *kept])
    return not lies.shares and 0 not in lies.stride


def structure(packed: str) -> str:
    """Return a packed value with tuples as lists: C++ extensions only return lists."""
    return packed.replace('{"tuple":', '{"list":')
