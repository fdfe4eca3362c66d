"""The guards: each returns why the kernel cannot be used, or None."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx import _symbolic_trace
from torch.nn.modules import module as torch_module

from .calls import ALIGNMENT
from .changes import _modes, _why_changed
from .facts import CHANGES_STATE, CONSTRUCTED, DEVICE, DTYPES, JUDGED, SHAPES, SIZES, TASK
from .kernel import _unfit
from .model import ModelNew, _names_of_model
from .nested import _Any, _build
from .original import _pristine
from .snapshots import _Snapshot
from .sources import Shapes, Tensors, Weights, _original


def _why_never(model: ModelNew, snapshot: _Snapshot) -> str | None:
    """Return why no call can use the kernel as long as the model stays as it is."""
    state, reason = model._stark, _unfit.get(model._stark.key) or _why_not_mode(model)
    if reason is not None:
        return reason
    bind = inspect.signature(_original.Model.__init__).bind
    mine, judged = bind(model, *state.arguments[0], **state.arguments[1]), bind(model, *_build(CONSTRUCTED, _Any()))
    mine.apply_defaults()
    judged.apply_defaults()
    if mine.arguments != judged.arguments:
        return "the model was made with other arguments than the judged one"
    if snapshot.has_hooks():
        return "a module inside has hooks"
    if snapshot.keeps_weights:
        return "an attribute of the model holds a weight"
    if not snapshot.sees_all_writes():
        return "a tensor of the model was made in inference mode, where torch does not count writes"
    for kind in type(model).__mro__[: type(model).__mro__.index(ModelNew) + 1]:
        known = _names_of_model if kind is ModelNew else {"forward"}
        own = {name for name in vars(kind).keys() - known if hasattr(_original.Model, name)}
        if own := {name for name in own if not name.startswith("__")}:
            return f"{kind.__name__} overrides {', '.join(sorted(own))}"
    return _why_changed(model, _pristine[state.key])


def _why_not_mode(model: ModelNew) -> str | None:
    if CHANGES_STATE:
        return "a call of the original changes its state, and the kernel's does not"
    if model._stark.judged_modes not in (None, _modes(model)):
        return "a module is in another mode, training or evaluation, than when the kernel was judged"
    return None


def _why_not_weights(weights: Weights) -> str | None:
    if len({weight.device for weight in weights.values()}) > 1:
        return "the weights lie on several devices"
    for name, weight in weights.items():
        if type(weight) not in (torch.Tensor, nn.Parameter) or weight.is_inference():
            return f"{name} is no ordinary tensor"
        if weight.device.type != DEVICE:
            return f"{name} is on {weight.device.type}; the kernel was judged on {DEVICE}"
        if not weight.is_contiguous() or weight.data_ptr() % ALIGNMENT or weight.is_conj() or weight.is_neg():
            return f"{name} is not contiguous or not aligned"
    return None


def _why_not_now() -> str | None:
    """Return why torch's state forbids the kernel."""
    if torch.is_autocast_enabled(DEVICE):
        return "autocast is on"
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return "a transform of torch.func or forward-mode differentiation is active"
    if torch._C._len_torch_function_stack() or torch.get_default_dtype() is not torch.float32:
        return "another default device or type is set"
    if (
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    ):
        return "hooks are set for all modules"
    return None


def _why_not(tensors: Tensors) -> str | None:
    """Return why a call cannot use the kernel, apart from the sizes of its inputs."""
    for tensor, dtype in zip(tensors, DTYPES, strict=True):
        if tensor.is_nested:
            return "an input is a nested tensor"
        if tensor.dtype is not dtype:
            return f"an input is {tensor.dtype}; the kernel was judged with {dtype}"
        if tensor.device.type != DEVICE or tensor.device != tensors[0].device:
            return f"an input is on {tensor.device.type}; the kernel was judged on {DEVICE}"
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            return "an input is not contiguous"
        if not _is_traced() and (tensor.is_conj() or tensor.is_neg()):
            return "an input waits to be conjugated or negated"
    return None


def _why_not_sizes(tensors: Tensors) -> str | None:
    shapes = tuple([tensor.shape for tensor in tensors])
    return None if shapes == SHAPES or _has_judged_sizes(shapes) else f"the kernel was judged {JUDGED}"


def _has_judged_sizes(shapes: Shapes) -> bool:
    """True if the shapes differ from the judged ones in one size alone, for which the kernel was found right."""
    if [len(shape) for shape in shapes] != [len(shape) for shape in SHAPES]:
        return False
    places = [(number, place) for number, shape in enumerate(shapes) for place in range(len(shape))]
    changed = [(number, place) for number, place in places if shapes[number][place] != SHAPES[number][place]]
    sizes = {shapes[number][place] for number, place in changed}
    return len(sizes) == 1 and any(changed == list(same) and least <= min(sizes) <= most for same, least, most in SIZES)


def _keep(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _needs_gradients(*tensors: Iterable[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for group in tensors for tensor in group)


def _is_observed() -> bool:
    """True if something records torch's operators, such as torch.fx: a kernel would hide them."""
    return torch._C._len_torch_dispatch_stack() > 0 or _symbolic_trace._is_fx_tracing_flag


def _is_traced() -> bool:
    """True if a program is made of this call."""
    return torch.compiler.is_dynamo_compiling() or torch._C._is_tracing() or torch.compiler.is_exporting()


@torch.compiler.assume_constant_result
def _warn(reason: str) -> bool:
    """Warn of a reason once. torch.compile runs this while it compiles."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"{TASK}: the original model runs in place of the kernel: {reason}.", stacklevel=6)
    return True


_warned: set[str] = set()
