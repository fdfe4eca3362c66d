"""The operator, for torch.compile, torch.export and torch.jit.trace."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from .facts import ARGUMENTS, KERNEL, ORIGINAL, SHAPES, SIZES
from .guards import _needs_gradients, _warn, _why_not, _why_not_mode, _why_not_sizes
from .kernel import _Kernel
from .nested import _build, _flatten
from .original import _pristine, _run_original, _weights_of
from .results import _copy
from .sources import Tensors, _digest, _original

_models: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()  # all of ModelNew, by their names
_numbers = itertools.count(1)
# A file that is imported under a second name needs a second operator.
_original.imports = getattr(_original, "imports", 0) + 1
_library = torch.library.Library(f"stark_{_digest(KERNEL, ORIGINAL, SHAPES, SIZES)}_{_original.imports}", "DEF")


def _run_operator(name: str, tensors: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run the kernel of a model. Run the original outside of the guards, and if the model has other weights now."""
    model = _models.get(name)
    kernel = model._stark.kernel_of(model) if model is not None else None
    if kernel and [each.data_ptr() for each in kernel.weights.values()] == [each.data_ptr() for each in weights]:
        reason = _why_not(tensors) or _why_not_sizes(tensors) or kernel.why_not(tensors)
        if reason is None:
            return kernel.run(tensors)
        _warn(reason)
        if _why_not_mode(model) is None:  # a program keeps the mode in which it was made
            results = _flatten(_original.Model.forward(model, *_build(ARGUMENTS, tensors)))
            return [_copy(result, result.stride()) for result in results]
    return [_copy(result, result.stride()) for result in _run_unnamed(name, weights, tensors)]


def _differentiate_operator(name: str, tensors: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run the original where a recorded program needs gradients."""
    if _needs_gradients(tensors, weights):
        return _run_unnamed(name, weights, tensors)
    with torch._C._AutoDispatchBelowAutograd():
        return _operator(name, tensors, weights)


def _describe_operator(name: str, tensors: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    results = _run_unnamed(name, weights, tensors)
    return [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=each.device) for each in results]


def _run_unnamed(name: str, weights: Tensors, tensors: Tensors) -> list[torch.Tensor]:
    key = name.partition("/")[0]
    if key not in _pristine:
        raise RuntimeError("Make a ModelNew with the same arguments first: this program needs it.")
    return _run_original(key, dict(zip(_weights_of(_pristine[key]), weights, strict=True)), tensors)


_library.define("run(str name, Tensor[] tensors, Tensor[] weights) -> Tensor[]")
_library.impl("run", _run_operator, "CompositeExplicitAutograd")
_library.impl("run", _differentiate_operator, "Autograd")
torch.library.register_fake(f"{_library.ns}::run", _describe_operator, lib=_library)
_operator = getattr(torch.ops, _library.ns).run.default


class _Differentiable(torch.autograd.Function):
    """Forward by the kernel, backward through the original. Second derivatives go through the original too."""

    @staticmethod
    def forward(ctx: Any, kernel: _Kernel, flags: Sequence[bool], count: int, *tensors: torch.Tensor) -> Any:
        ctx.key, ctx.names, ctx.count = kernel.key, list(kernel.weights), count
        ctx.save_for_backward(*tensors)
        results = kernel.run(tensors[:count])
        ctx.mark_non_differentiable(*(result for result, flag in zip(results, flags, strict=True) if not flag))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        again = torch.is_grad_enabled()  # a second derivative may be wanted
        with torch.enable_grad():
            saved = ctx.saved_tensors
            tensors = saved if again else [each.detach().requires_grad_(each.requires_grad) for each in saved]
            weights = dict(zip(ctx.names, tensors[ctx.count :], strict=True))
            results = _run_original(ctx.key, weights, tensors[: ctx.count])
        pairs = [pair for pair in zip(results, gradients, strict=True) if pair[0].requires_grad]
        wanted = [each for each in tensors if each.requires_grad]
        outputs, given = [result for result, _ in pairs], [gradient for _, gradient in pairs]
        found = iter(torch.autograd.grad(outputs, wanted, given, allow_unused=True, create_graph=again))
        return None, None, None, *(next(found) if each.requires_grad else None for each in tensors)
