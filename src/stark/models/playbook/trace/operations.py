"""The operations that can be fused, by PyTorch's names, each built from a few simple ones.

The functions take PyTorch's own arguments, so that Python matches positional and named ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from stark.models.playbook.trace.values import UNARY, Operand, Shape, Unsupported, Value, pointwise, reduce

Handler = Callable[..., Any]


def _unary(op: str) -> Handler:
    return lambda input: pointwise(op, input)


def _binary(op: str) -> Handler:
    return lambda input, other: pointwise(op, input, other)


def add(x: Operand, y: Operand, alpha: float = 1) -> Value:
    return pointwise("add", x, y if alpha == 1 else pointwise("mul", y, alpha))


def power(x: Value, exponent: Operand) -> Value:
    """Powers as a few products or roots."""
    known: dict[Any, Callable[[], Value]] = {
        1: lambda: x,
        2: lambda: pointwise("mul", x, x),
        3: lambda: pointwise("mul", pointwise("mul", x, x), x),
        0.5: lambda: pointwise("sqrt", x),
        -0.5: lambda: pointwise("rsqrt", x),
        -1: lambda: pointwise("div", 1.0, x),
    }
    if isinstance(exponent, Value) or exponent not in known:
        raise Unsupported("a power other than 1, 2, 3, 0.5, -0.5 and -1")
    return known[exponent]()


def clamp(x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    low = x if min is None else pointwise("max2", x, min)
    return low if max is None else pointwise("min2", low, max)


def leaky_relu(x: Value, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    return pointwise("max2", x, pointwise("mul", x, negative_slope))


def silu(x: Value, inplace: bool = False) -> Value:
    return pointwise("mul", x, pointwise("sigmoid", x))


def relu(x: Value, inplace: bool = False) -> Value:
    return pointwise("max2", x, 0.0)


def relu6(x: Value, inplace: bool = False) -> Value:
    return clamp(x, 0.0, 6.0)


def hardsigmoid(x: Value, inplace: bool = False) -> Value:
    return clamp(add(pointwise("div", x, 6.0), 0.5), 0.0, 1.0)


def hardswish(x: Value, inplace: bool = False) -> Value:
    return pointwise("mul", x, hardsigmoid(x))


def hardtanh(x: Value, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    return clamp(x, min_val, max_val)


def gelu(x: Value, approximate: str = "none") -> Value:
    half = pointwise("mul", x, 0.5)
    if approximate == "tanh":
        cubic = pointwise("mul", add(x, pointwise("mul", power(x, 3), 0.044715)), math.sqrt(2 / math.pi))
        return pointwise("mul", half, add(pointwise("tanh", cubic), 1.0))
    return pointwise("mul", half, add(pointwise("erf", pointwise("mul", x, math.sqrt(0.5))), 1.0))


def softplus(x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    scaled = x if beta == 1.0 else pointwise("mul", x, beta)
    small = pointwise("log", add(pointwise("exp", pointwise("neg", pointwise("abs", scaled))), 1.0))
    soft = add(relu(scaled), small)
    return soft if beta == 1.0 else pointwise("div", soft, beta)


def mish(x: Value, inplace: bool = False) -> Value:
    return pointwise("mul", x, pointwise("tanh", softplus(x)))


def mean(x: Value, dim: object = None, keepdim: bool = False) -> Value:
    total = reduce("sum", x, dim, keepdim)
    return pointwise("div", total, float(x.size // max(1, total.size)))


def summed(x: Value, dim: object = None, keepdim: bool = False) -> Value:
    return reduce("sum", x, dim, keepdim)


def largest(x: Value, dim: object = None, keepdim: bool = False) -> Value:
    return reduce("max", x, dim, keepdim)


def maximum(x: Value, dim: object = None, keepdim: bool = False) -> Any:
    """torch.max: of two tensors, of all elements, or values and indices along a dimension."""
    if isinstance(dim, Value):
        return pointwise("max2", x, dim)
    if dim is None:
        return reduce("max", x)
    return {"values": reduce("max", x, dim, keepdim), "indices": argmax(x, dim, keepdim)}


def smallest(x: Value, dim: object = None, keepdim: bool = False) -> Value:
    return reduce("min", x, dim, keepdim)


def argmax(x: Value, dim: object = None, keepdim: bool = False) -> Value:
    if dim is None and len(x.shape) > 1:
        raise Unsupported("argmax over several dimensions")
    return reduce("argmax", x, dim, keepdim)


def variance(
    x: Value, dim: object = None, correction: float = 1, keepdim: bool = False, unbiased: bool = True
) -> Value:
    population = reduce("var", x, dim, keepdim)
    if population.dims == len(x.shape) > 1:  # over everything: the mean must be known before the first row
        population = mean(power(pointwise("sub", x, mean(x)), 2), dim, keepdim)
    count = x.size // max(1, population.size)
    degrees = count - (correction if unbiased else 0)
    return population if degrees == count else pointwise("mul", population, count / max(degrees, 1e-30))


def deviation(x: Value, dim: object = None, **options: Any) -> Value:
    return pointwise("sqrt", variance(x, dim, **options))


def norm(x: Value, p: object = 2, dim: object = None, keepdim: bool = False) -> Value:
    if p in (2, 2.0, "fro"):
        return pointwise("sqrt", reduce("sum", power(x, 2), dim, keepdim))
    if p in (1, 1.0):
        return reduce("sum", pointwise("abs", x), dim, keepdim)
    raise Unsupported(f"the norm of order {p}")


def normalize(x: Value, p: object = 2, dim: object = 1, eps: float = 1e-12) -> Value:
    return pointwise("div", x, clamp(norm(x, p, dim, keepdim=True), min=eps))


def softmax(x: Value, dim: object = None) -> Value:
    weights = pointwise("exp", pointwise("sub", x, reduce("max", x, _one(dim), keepdim=True)))
    return pointwise("div", weights, reduce("sum", weights, dim, keepdim=True))


def log_softmax(x: Value, dim: object = None) -> Value:
    shifted = pointwise("sub", x, reduce("max", x, _one(dim), keepdim=True))
    total = reduce("sum", pointwise("exp", shifted), dim, keepdim=True)
    return pointwise("sub", shifted, pointwise("log", total))


def logsumexp(x: Value, dim: object = None, keepdim: bool = False) -> Value:
    top = reduce("max", x, _one(dim), keepdim=True)
    total = reduce("sum", pointwise("exp", pointwise("sub", x, top)), dim, keepdim=True)
    found = add(pointwise("log", total), top)
    return found if keepdim else Value("alias", reduce("sum", x, dim).shape, (found,), squeezed=True)


def layer_norm(
    x: Value, normalized_shape: Any, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5
) -> Value:
    dims = _last(x, normalized_shape)
    centred = pointwise("sub", x, mean(x, dims, keepdim=True))
    root = pointwise("rsqrt", add(reduce("var", x, dims, keepdim=True), eps))
    return _affine(pointwise("mul", centred, root), weight, bias)


def rms_norm(x: Value, normalized_shape: Any, weight: Value | None = None, eps: float | None = None) -> Value:
    square = mean(power(x, 2), _last(x, normalized_shape), keepdim=True)
    root = pointwise("rsqrt", add(square, 1.1920929e-07 if eps is None else eps))
    return _affine(pointwise("mul", x, root), weight, None)


def mse_loss(x: Value, target: Value, reduction: str = "mean") -> Value:
    return _loss(power(pointwise("sub", x, target), 2), reduction)


def l1_loss(x: Value, target: Value, reduction: str = "mean") -> Value:
    return _loss(pointwise("abs", pointwise("sub", x, target)), reduction)


def huber_loss(x: Value, target: Value, reduction: str = "mean", delta: float = 1.0) -> Value:
    error = pointwise("abs", pointwise("sub", x, target))
    near = clamp(error, max=delta)
    return _loss(pointwise("mul", near, pointwise("sub", error, pointwise("mul", near, 0.5))), reduction)


def smooth_l1_loss(x: Value, target: Value, reduction: str = "mean", beta: float = 1.0) -> Value:
    return pointwise("div", huber_loss(x, target, reduction, beta), beta)


def bce_with_logits(x: Value, target: Value, reduction: str = "mean") -> Value:
    return _loss(pointwise("sub", softplus(x), pointwise("mul", x, target)), reduction)


def alias(x: Value, shape: Shape, text: str) -> Value:
    """A reshaped tensor: free inside a kernel if only dimensions of size 1 change, otherwise a view of memory."""
    core, new = [tuple(size for size in each if size != 1) for each in (x.shape, shape)]
    if x.is_fusable and not x.is_integer and core == new:
        return Value("alias", shape, (x,), squeezed=len(shape) < len(x.shape))
    batched_args = (0,) if shape[:1] == x.shape[:1] else ()
    return Value("library", shape, (x,), text, batched_args=batched_args, is_view=True)


def _one(dim: object) -> object:
    if dim is None:
        raise Unsupported("a softmax that does not name its dimension")
    return dim


def _last(x: Value, normalized_shape: Any) -> tuple[int, ...]:
    count = len(normalized_shape) if isinstance(normalized_shape, tuple | list) else 1
    return tuple(range(len(x.shape) - count, len(x.shape)))


def _affine(x: Value, weight: Value | None, bias: Value | None) -> Value:
    scaled = x if weight is None else pointwise("mul", x, weight)
    return scaled if bias is None else add(scaled, bias)


def _loss(each: Value, reduction: str) -> Value:
    known = {"mean": lambda: mean(each), "sum": lambda: reduce("sum", each), "none": lambda: each}
    if reduction not in known:
        raise Unsupported(f"the reduction {reduction!r} of a loss")
    return known[reduction]()


FUSABLE: dict[str, Handler] = {
    **{name: _unary(name) for name in sorted(UNARY)},
    **{name: _binary(name) for name in ("mul", "div")},
    "sub": lambda x, y, alpha=1: pointwise("sub", x, y if alpha == 1 else pointwise("mul", y, alpha)),
    "add": add,
    "pow": power,
    "square": lambda x: power(x, 2),
    "reciprocal": lambda x: power(x, -1),
    "maximum": _binary("max2"),
    "minimum": _binary("min2"),
    "clamp": clamp,
    "clip": clamp,
    "clamp_min": lambda x, min: clamp(x, min=min),
    "clamp_max": lambda x, max: clamp(x, max=max),
    "relu": relu,
    "relu6": relu6,
    "leaky_relu": leaky_relu,
    "silu": silu,
    "gelu": gelu,
    "softplus": softplus,
    "softsign": lambda x: pointwise("div", x, add(pointwise("abs", x), 1.0)),
    "mish": mish,
    "hardsigmoid": hardsigmoid,
    "hardswish": hardswish,
    "hardtanh": hardtanh,
    "mean": mean,
    "sum": summed,
    "amax": largest,
    "amin": smallest,
    "max": maximum,
    "argmax": argmax,
    "var": variance,
    "std": deviation,
    "norm": norm,
    "normalize": normalize,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "logsumexp": logsumexp,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "mse_loss": mse_loss,
    "l1_loss": l1_loss,
    "huber_loss": huber_loss,
    "smooth_l1_loss": smooth_l1_loss,
    "binary_cross_entropy_with_logits": bce_with_logits,
}
