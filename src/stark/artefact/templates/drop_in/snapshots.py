"""The state of a model at one time."""

from __future__ import annotations

import gc
import itertools
import operator
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch._C._dynamo import guards
from torch.optim.optimizer import register_optimizer_step_post_hook

_MODULE = frozenset(nn.Module().__dict__)  # names that every module has
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_steps = 0  # of optimisers: fused ones write weights without a trace


def _count_step(*_: object) -> None:
    global _steps
    _steps += 1


register_optimizer_step_post_hook(_count_step)


class _Snapshot:
    """The state of a model's modules and weights at one time. It does not keep the model alive."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        places = [place for child in modules for place in (child._parameters, child._buffers)]
        weights = [weight for place in places for weight in place.values() if weight is not None]
        opened, others = _open_containers(
            value for child in modules if not isinstance(child, nn.RNNBase) for value in _own(child).values()
        )
        ids = set(map(id, weights))
        self.keeps_weights = any(id(each) in ids for each in others)  # besides those that are registered
        others = [each for each in others if id(each) not in ids]
        others += [child._buffers[name] for child in modules for name in child._non_persistent_buffers_set]
        kinds = [
            _dict_of(kind) for kind in itertools.takewhile(lambda kind: kind is not nn.Module, type(model).__mro__)
        ]
        containers = [*opened, *places, *(child._modules for child in modules), *map(vars, modules[1:]), *kinds]
        mappings = [each for each in containers if isinstance(each, dict)]
        self._lists = [each for each in containers if not isinstance(each, dict)]
        self._listed = list(_chain(self._lists))
        self._mappings = mappings
        self._writes = self._count_writes(model)  # first: another thread may write meanwhile
        own = {name: value for name, value in vars(model).items() if name != "_stark"}
        self._model, self._names, self._own = weakref.ref(model), list(own), list(own.values())
        # Views show what is there at any time.
        self._keys = [mapping.keys() for mapping in mappings]
        self._values = [mapping.values() for mapping in mappings]
        self._known_keys, self._known = list(_chain(self._keys)), list(_chain(self._values))
        self._typed, self._type = [*modules[1:], *weights], type(model)
        self._types = list(map(type, self._typed))
        self._hooks = [child.__dict__[name] for child in modules[1:] for name in HOOKS]
        self._weights, self._others = _Stamps(weights), _Stamps(others)  # a kernel may have copied others
        self._is_inference = torch.is_inference_mode_enabled()

    def has_hooks(self) -> bool:
        return any(self._hooks)

    def sees_all_writes(self) -> bool:
        """True if torch counts how often each tensor is written that is no weight."""
        return self._others.are_counted()

    def is_current(self, looks_at_values: bool, looks_at_layouts: bool = True) -> bool:
        """True if nothing was replaced since. With ``looks_at_values`` no weight was written either."""
        model = self._model()
        return (
            type(model) is self._type
            and (self._count_writes(model) == self._writes or self._has_same_names(model))
            and list(map(type, self._typed)) == self._types
            and (not self._lists or self._has_same_lists())
            and self._weights.are_current(looks_at_values, looks_at_layouts)
            and self._others.are_current(True, True)
            and not any(self._hooks)
            and self._is_inference == torch.is_inference_mode_enabled()
        )

    def _count_writes(self, model: nn.Module) -> list[Any]:
        return [_count_writes(model.__dict__), *map(_count_writes, self._mappings)]

    def _has_same_names(self, model: nn.Module) -> bool:
        """True if what was written meanwhile is what was there."""
        writes, own = self._count_writes(model), model.__dict__
        is_same = (
            len(own) == len(self._names) + ("_stark" in own)
            and all(map(operator.is_, map(own.get, self._names), self._own))
            and sum(map(len, self._values)) == len(self._known)
            and all(map(operator.is_, _chain(self._values), self._known))
            and list(_chain(self._keys)) == self._known_keys
        )
        self._writes = writes if is_same else self._writes
        return is_same

    def _has_same_lists(self) -> bool:
        is_as_long = sum(map(len, self._lists)) == len(self._listed)
        return is_as_long and all(map(operator.is_, _chain(self._lists), self._listed))


def _dict_of(kind: type) -> Any:
    """Return the dictionary behind the view that ``vars`` shows of a class."""
    return next(each for each in gc.get_referents(vars(kind)) if isinstance(each, dict))


# Returns a number that changes when a dictionary does. torch may change what is not public; then names are compared.
_count_writes: Callable[[Any], Any] = getattr(guards, "dict_version", lambda mapping: object())
_chain = itertools.chain.from_iterable


def _open_containers(values: Iterable[Any]) -> tuple[list[Any], list[torch.Tensor]]:
    """Return all containers in some values, however deep, and all tensors in these."""
    containers: list[Any] = []
    tensors: list[torch.Tensor] = []
    waiting, seen = list(values), set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple | set | dict) and id(value) not in seen:
            seen.add(id(value))
            containers.append(value)
            waiting += value.values() if isinstance(value, dict) else value
    return containers, tensors


class _Stamps:
    """Where tensors lay at one time, and how often each was written."""

    def __init__(self, tensors: Iterable[torch.Tensor | None]) -> None:
        self._tensors = [tensor for tensor in tensors if tensor is not None]
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._pointers, self._versions = self._find_pointers(), self._find_versions()
        self._layouts = self._find_layouts()

    def are_counted(self) -> bool:
        return len(self._counted) == len(self._tensors)

    def are_current(self, looks_at_values: bool, looks_at_layouts: bool) -> bool:
        return not self._tensors or (
            self._find_pointers() == self._pointers
            and (not looks_at_values or self._find_versions() == self._versions)
            and (not looks_at_layouts or self._find_layouts() == self._layouts)
        )

    def _find_pointers(self) -> list[int]:
        return list(map(torch.Tensor.data_ptr, self._tensors))

    def _find_versions(self) -> list[int]:
        return [_steps, *[tensor._version for tensor in self._counted]]

    def _find_layouts(self) -> list[tuple[Any, ...]]:
        return [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in self._tensors]


def _own(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that not every module has."""
    return {name: value for name, value in module.__dict__.items() if name not in _MODULE and name != "_stark"}
