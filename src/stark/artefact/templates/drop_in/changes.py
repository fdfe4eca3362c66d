"""Changes that a user made to a model."""

from __future__ import annotations

import inspect
import types
import weakref
from typing import Any

import torch
from torch import nn

from .facts import ORIGINAL
from .original import _weights_of
from .snapshots import _own
from .sources import _original

INERT = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def _why_changed(model: nn.Module, pristine: nn.Module) -> str | None:
    """Return how a model differs from one that its constructor just made, apart from weights and mode."""
    mine, judged = (dict(each.named_modules(remove_duplicate=False)) for each in (model, pristine))
    if list(mine) != list(judged) or list(_weights_of(model)) != list(_weights_of(pristine)):
        return "modules or weights were added, removed or put in another order"
    for name, child in mine.items():
        where = f"{name}." if name else ""
        if name and type(child) is not type(judged[name]):
            return f"the module {name} was replaced"
        own, right = _own(child), _own(judged[name])
        for attribute in {**own, **right}:
            is_new = attribute not in right
            if is_new and not hasattr(type(judged[name]), attribute) and attribute not in ORIGINAL:
                continue  # the original cannot know it
            if is_new or attribute not in own or not _is_same(own[attribute], right[attribute]):
                return f"the attribute {where}{attribute} was changed"
    return None


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, nn.Parameter | weakref.ref):
        return True  # a module that lists its weights; they are compared elsewhere
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, types.FunctionType):
        return one.__code__ is other.__code__ and not (one.__closure__ or one.__defaults__ or one.__kwdefaults__)
    return isinstance(one, INERT) and bool(one == other)


def _depends_on_mode(model: nn.Module) -> bool:
    """True if a module may behave otherwise in the other of training and evaluation mode."""
    if "training" in ORIGINAL:
        return True
    for child in model.modules():
        if isinstance(child, nn.modules.dropout._DropoutNd) and child.p == 0:
            continue
        if isinstance(child, nn.RNNBase | nn.MultiheadAttention) and child.dropout == 0:
            continue
        for kind in type(child).__mro__:
            is_known = kind in (nn.Module, object) or kind.__module__ in (_original.__name__, __name__)
            if not is_known and (not kind.__module__.startswith("torch.nn.") or "training" in inspect.getsource(kind)):
                return True
    return False


def _modes(model: nn.Module) -> list[bool]:
    """Return for each module if it is in training mode."""
    return [child.training for child in model.modules()]
