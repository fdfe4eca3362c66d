"""Nested arguments and results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .facts import ARGUMENTS, RESULT
from .sources import _Unfit


def _build(packed: Mapping[str, Any], tensors: Any) -> Any:
    """Put tensors into the places of a nested value."""
    ((kind, content),) = packed.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _build(item, tensors) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_build(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    return content


def _matches(packed: Mapping[str, Any], value: Any, tensors: list[Any]) -> bool:
    """True if a value has this structure and these constants; append its tensors. Lists may be tuples."""
    ((kind, content),) = packed.items()
    if kind == "tensor":
        tensors.append(value)
        return isinstance(value, torch.Tensor)
    if kind == "dict":
        is_dict = type(value) is dict and list(value) == [key for key, _ in content]
        return is_dict and all(_matches(item, value[key], tensors) for key, item in content)
    if kind in ("list", "tuple"):
        is_sequence = type(value) in (list, tuple) and len(value) == len(content)
        return is_sequence and all(_matches(*pair, tensors) for pair in zip(content, value, strict=True))
    return type(value) is type(content) and bool(value == content)


def _flatten(result: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    if not _matches(RESULT, result, tensors):
        raise _Unfit("the result has another structure than the judged one")
    return tensors


class _Any:
    """Equals every tensor, and stands for any number of them."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.Tensor)

    def __getitem__(self, number: int) -> _Any:
        return self


IS_PLAIN = [*ARGUMENTS] == ["list"] and all([*item] == ["tensor"] for item in ARGUMENTS["list"])
IS_ONE = [*RESULT] == ["tensor"]
