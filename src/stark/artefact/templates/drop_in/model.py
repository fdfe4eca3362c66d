"""The model."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .changes import _depends_on_mode, _modes
from .facts import ARGUMENTS, IS_RANDOM, RESULT, TASK
from .guards import (
    _is_observed,
    _is_traced,
    _keep,
    _needs_gradients,
    _warn,
    _why_not,
    _why_not_mode,
    _why_not_now,
    _why_not_sizes,
)
from .kernel import _Kernel
from .nested import _build, _matches
from .operators import _Differentiable, _models, _numbers, _operator
from .original import _keep_pristine, _run_original, _weights_of
from .sources import NotJudged, _digest, _lock, _original, _Unfit


class _State:
    """The state of a ModelNew besides the original's attributes."""

    def __init__(self, model: ModelNew, args: tuple[Any, ...], kwargs: dict[str, Any], strict: bool) -> None:
        self.arguments, self.strict, self.key = (args, kwargs), strict, _digest(args, kwargs)
        self.kernel: _Kernel | None = None  # for the model as it was at the last call
        self.flags: dict[tuple[bool, ...], list[bool]] = {}  # results that need gradients, by tensors that do
        self._model = weakref.ref(model)
        pristine = _keep_pristine(self.key, args, kwargs)
        self.judged_modes = _modes(pristine) if _depends_on_mode(pristine) else None
        self.name = f"{self.key}/{next(_numbers)}"
        _models[self.name] = model

    def is_of(self, model: ModelNew) -> bool:
        return self._model() is model

    def kernel_of(self, model: ModelNew) -> _Kernel:
        """Return the kernel for the model as it is now."""
        if self.kernel is None or not self.kernel.is_current():
            with _lock:
                self.kernel = _Kernel(model)
        return self.kernel


_takes_strict = {"strict"} & inspect.signature(_original.Model.__init__).parameters.keys()


class ModelNew(_original.Model):
    """The original model, with the kernel in its place wherever the kernel was judged.

    Outside of that the original runs, with one warning that says why. With ``strict=True`` an error is raised there.
    """

    _stark: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        strict = False if _takes_strict else kwargs.pop("strict", False)
        super().__init__(*args, **kwargs)
        self._stark = _State(self, args, kwargs, strict)

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        if isinstance(state, dict) and self._stark is not None:
            state = {**state, "_stark": (*self._stark.arguments, self._stark.strict)}
        return state

    def __setstate__(self, state: Any) -> None:
        kept = state.pop("_stark", None) if isinstance(state, dict) else None
        super().__setstate__(state)
        if kept is not None:
            self._stark = _State(self, *kept)

    def __prepare_scriptable__(self) -> nn.Module:
        """Return the original with the same modules and weights: TorchScript cannot compile what surrounds a kernel."""
        model = _original.Model.__new__(_original.Model)
        model.__dict__.update({name: value for name, value in vars(self).items() if name != "_stark"})
        return model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        state, is_traced = self._stark, _is_traced()
        if state is None or (not is_traced and (_is_observed() or not state.is_of(self))):
            return super().forward(*args, **kwargs)  # what lacks a state is a copy
        kernel = state.kernel
        if not is_traced and kernel is not None and not kwargs and (before := kernel.find_before(args)):
            return kernel.run_again(before, args)
        return self._find_way(args, kwargs)

    def _find_way(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Find out if the kernel can run, in full, and say why if it cannot."""
        tensors: list[torch.Tensor] = []
        if kwargs:
            bound = inspect.signature(_original.Model.forward).bind(self, *args, **kwargs)
            if bound.kwargs:
                return self._run_original("it was called with keywords that were not judged", args, kwargs)
            args, kwargs = bound.args[1:], {}
        if not _matches(ARGUMENTS, args, tensors):
            return self._run_original("the arguments are others than the judged ones", args)
        reason = _why_not(tensors)
        if reason is None and _is_traced():
            return self._run_traced(tensors, args)
        if reason is None and not all(type(each) in (torch.Tensor, nn.Parameter) for each in tensors):
            reason = "an input is no ordinary tensor"
        reason = reason or _why_not_sizes(tensors) or _why_not_now()
        if reason is None:
            kernel = self._stark.kernel_of(self)
            reason = kernel.why_not(tensors)
        if reason is not None:
            return self._run_original(reason, args)
        try:
            if _needs_gradients(tensors, kernel.weights.values()):
                return self._run_with_gradients(kernel, tensors, args)
            results = kernel.run(tensors)
            kernel.remember(tensors)
            return _build(RESULT, results)
        except _Unfit as unfit:
            kernel.reason = str(unfit)
            return self._run_original(kernel.reason, args)

    def _run_traced(self, tensors: list[torch.Tensor], args: Sequence[Any]) -> Any:
        """Call the operator, which a tracer records. Where gradients are needed it records the original."""
        weights = list(_weights_of(self).values())
        if _needs_gradients(tensors, weights):
            return self._run_original("gradients are needed while the model is traced", args)
        if (reason := _why_not_mode(self)) is not None:
            return self._run_original(reason, args)
        return _build(RESULT, _operator(self._stark.name, tensors, weights))

    def _run_with_gradients(self, kernel: _Kernel, tensors: list[torch.Tensor], args: Sequence[Any]) -> Any:
        if IS_RANDOM:
            return self._run_original("gradients need the same random numbers again", args)
        inputs = [*tensors, *kernel.weights.values()]
        wanted = tuple(each.requires_grad for each in inputs)
        if wanted not in self._stark.flags:  # the original's results show which of them need gradients
            with torch.autograd.graph.saved_tensors_hooks(_keep, _keep):  # no checkpoint counts what is saved here
                results = _run_original(kernel.key, kernel.weights, tensors)
            self._stark.flags[wanted] = [result.requires_grad for result in results]
        return _build(RESULT, _Differentiable.apply(kernel, self._stark.flags[wanted], len(tensors), *inputs))

    def _run_original(self, reason: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Any:
        if self._stark.strict:
            raise NotJudged(f"{TASK}: the kernel cannot be used: {reason}.")
        _warn(reason)
        return super().forward(*args, **kwargs or {})


_names_of_model = frozenset(vars(ModelNew))
ModelNew.forward.__wrapped__ = _original.Model.forward  # its signature, for torch.fx
