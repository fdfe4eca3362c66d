"""Operations that stay with PyTorch's libraries: products, convolutions, pooling, and views.

Each becomes a value whose text is the call itself.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from stark.models.playbook.trace.inference import INFERENCE, TRAINING_LAYERS
from stark.models.playbook.trace.operations import FUSABLE, Handler, alias, layer_norm, mean, rms_norm
from stark.models.playbook.trace.values import Shape, Unsupported, Value

F = "torch.nn.functional"


def linear(x: Value, weight: Value, bias: Value | None = None) -> Value:
    shape = (*x.shape[:-1], weight.shape[0])
    if bias is None:
        return Value("library", shape, (x, weight), f"{F}.linear({{0}}, {{1}})", batched_args=_rows(x))
    return Value("library", shape, (x, weight, bias), f"{F}.linear({{0}}, {{1}}, {{2}})", batched_args=_rows(x))


def matmul(x: Value, y: Value) -> Value:
    """A product of matrices or batches of matrices."""
    if min(len(x.shape), len(y.shape)) < 2 or x.shape[-1] != y.shape[-2]:
        raise Unsupported(f"a product of tensors of the shapes {x.shape} and {y.shape}")
    batch = x.shape[:-2] or y.shape[:-2]
    if y.shape[:-2] not in ((), batch):
        raise Unsupported("a product of stacks that are not of one size")
    stacks = tuple(place for place, each in enumerate((x, y)) if len(each.shape) > 2)
    call = "torch.matmul({0}, {1})"
    shape = (*batch, x.shape[-2], y.shape[-1])
    return Value(
        "library", shape, (x, y), call, batched_args=stacks or (0,), out_call="torch.matmul({0}, {1}, out={out})"
    )


def attention(
    q: Value,
    k: Value,
    v: Value,
    attn_mask: None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if attn_mask is not None or dropout_p or enable_gqa:
        raise Unsupported("attention with a mask, dropout or shared heads")
    call = f"{F}.scaled_dot_product_attention({{0}}, {{1}}, {{2}}, is_causal={is_causal}, scale={scale})"
    batched_args = (0, 1, 2) if len(q.shape) > 2 else ()
    return Value("library", (*q.shape[:-1], v.shape[-1]), (q, k, v), call, batched_args=batched_args)


def pool(name: str) -> Handler:
    def handler(x: Value, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Value:
        shape = _window(x.shape, x.shape[1], kernel_size, kernel_size if stride is None else stride, padding, 1)
        call = f"{F}.{name}({{0}}, {kernel_size!r}, {stride!r}, {padding!r})"
        return Value("library", shape, (x,), call, batched_args=(0,))

    return handler


def adaptive_average(x: Value, output_size: Any) -> Value:
    if set(_pair(output_size)) != {1}:
        raise Unsupported("adaptive pooling to more than one value per channel")
    return mean(x, (-2, -1), keepdim=True)


def convolution(x: Value, weight: Shape, stride: Any, padding: Any, dilation: Any, layer: str = "") -> Value:
    """A convolution of images."""
    if len(x.shape) != 4 or not isinstance(padding, int | tuple | list):
        raise Unsupported("a convolution that is not of pictures with a padding in numbers")
    shape = _window(x.shape, weight[0], weight[2:], stride, padding, dilation)
    return Value("library", shape, (x,), f"{layer}({{0}})", batched_args=(0,), layer=layer)


def conv2d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    made = convolution(x, weight.shape, stride, padding, dilation)
    args: tuple[Value, ...] = (x, weight) if bias is None else (x, weight, bias)
    names = "{0}, {1}, None" if bias is None else "{0}, {1}, {2}"
    call = f"{F}.conv2d({names}, {stride!r}, {padding!r}, {dilation!r}, {groups!r})"
    return Value("library", made.shape, args, call, batched_args=(0,))


def _rows(x: Value) -> tuple[int, ...]:
    """A linear layer works on rows, so a matrix is batched and a vector is not."""
    return (0,) if len(x.shape) > 1 else ()


def _window(shape: Shape, channels: int, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Shape:
    sides = zip(shape[2:], _pair(kernel), _pair(stride), _pair(padding), _pair(dilation), strict=True)
    return shape[0], channels, *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides)


def _pair(given: Any) -> tuple[int, int]:
    return (given, given) if isinstance(given, int) else tuple(given)


# -- views ------------------------------------------------------------------------------------------------------------


def reshape(x: Value, *sizes: Any) -> Value:
    wanted = list(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes)
    if wanted.count(-1) == 1:
        wanted[wanted.index(-1)] = x.size // max(1, prod(size for size in wanted if size != -1))
    if prod(wanted) != x.size:
        raise Unsupported(f"how a tensor of the shape {x.shape} is reshaped to {wanted}")
    return alias(x, tuple(wanted), f"{{0}}.reshape({', '.join(map(str, wanted))})")


def flatten(x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    first, last = start_dim % len(x.shape), end_dim % len(x.shape)
    return reshape(x, *x.shape[:first], prod(x.shape[first : last + 1]), *x.shape[last + 1 :])


def transpose(x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(len(x.shape)))
    first, second = dim0 % len(order), dim1 % len(order)
    order[first], order[second] = order[second], order[first]
    return permute(x, order)


def permute(x: Value, *order: Any) -> Value:
    dims = list(order[0] if len(order) == 1 and not isinstance(order[0], int) else order)
    shape, batched_args = tuple(x.shape[each] for each in dims), (0,) if dims[:1] == [0] else ()
    call = f"{{0}}.permute({', '.join(map(str, dims))})"
    return Value("library", shape, (x,), call, batched_args=batched_args, is_view=True)


def unsqueeze(x: Value, dim: int) -> Value:
    place = dim % (len(x.shape) + 1)
    return reshape(x, *x.shape[:place], 1, *x.shape[place:])


def squeeze(x: Value, dim: int) -> Value:
    place = dim % len(x.shape)
    return reshape(x, *x.shape[:place], *x.shape[place + 1 :]) if x.shape[place] == 1 else x


LIBRARY: dict[str, Handler] = {
    "linear": linear,
    "matmul": matmul,
    "bmm": matmul,
    "mm": matmul,
    "conv2d": conv2d,
    "max_pool2d": pool("max_pool2d"),
    "avg_pool2d": pool("avg_pool2d"),
    "adaptive_avg_pool2d": adaptive_average,
    "scaled_dot_product_attention": attention,
    "reshape": reshape,
    "view": reshape,
    "flatten": flatten,
    "transpose": transpose,
    "permute": permute,
    "t": lambda x: transpose(x, 0, 1),
    "unsqueeze": unsqueeze,
    "squeeze": squeeze,
    "contiguous": lambda x: x,
    "float": lambda x: x,
    "size": lambda x, dim=None: list(x.shape) if dim is None else x.shape[dim],
    **INFERENCE,
    "dim": lambda x: len(x.shape),
    "numel": lambda x: x.size,
}


# -- layers: modules whose weights PyTorch holds ----------------------------------------------------------------------

Layer = Callable[[Value, str], Value]  # applied to a value, given the Python that names the layer


def _linear(in_features: int, out_features: int, bias: bool = True) -> Layer:
    def made(x: Value, path: str) -> Value:
        product = f"torch.addmm({path}.bias, " if bias else "torch.mm("
        out_call = f"{product}{{0}}, {path}.weight.t(), out={{out}})" if len(x.shape) == 2 else ""
        rows, shape = x.size // in_features, (*x.shape[:-1], out_features)
        packed_call = f'torch.ops.mkldnn._linear_pointwise({{0}}, packed({path}, {rows}), {path}.bias, "none", [], "")'
        return Value(
            "library", shape, (x,), f"{path}({{0}})", batched_args=_rows(x), out_call=out_call, packed_call=packed_call
        )

    return made


def _conv2d(
    in_channels: int,
    out_channels: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    bias: bool = True,
) -> Layer:
    weight = (out_channels, in_channels // groups, *_pair(kernel_size))
    return lambda x, path: convolution(x, weight, stride, padding, dilation, path)


def _weights(path: str, shape: Any, *names: str) -> dict[str, Value]:
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    return {name: Value("weight", sizes, text=f"{path}.{name}") for name in names}


def _layer_norm(shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True) -> Layer:
    names = () if not elementwise_affine else ("weight", "bias") if bias else ("weight",)
    return lambda x, path: layer_norm(x, shape, **_weights(path, shape, *names), eps=eps)


def _rms_norm(shape: Any, eps: float | None = None, elementwise_affine: bool = True) -> Layer:
    names = ("weight",) if elementwise_affine else ()
    return lambda x, path: rms_norm(x, shape, **_weights(path, shape, *names), eps=eps)


def _stateless(name: str, table: dict[str, Handler]) -> Callable[..., Layer]:
    """A module that calls a function with its own arguments."""

    def made(*args: Any, **options: Any) -> Layer:
        return lambda x, path: table[name](x, *args, **options)

    return made


_ACTIVATIONS = {
    "ReLU": "relu", "ReLU6": "relu6", "LeakyReLU": "leaky_relu", "SiLU": "silu", "GELU": "gelu", "Mish": "mish",
    "Sigmoid": "sigmoid", "Tanh": "tanh", "Softplus": "softplus", "Softsign": "softsign", "Hardtanh": "hardtanh",
    "Hardswish": "hardswish", "Hardsigmoid": "hardsigmoid", "Softmax": "softmax", "LogSoftmax": "log_softmax",
}  # fmt: skip
_SHAPING = {
    "MaxPool2d": "max_pool2d", "AvgPool2d": "avg_pool2d", "AdaptiveAvgPool2d": "adaptive_avg_pool2d",
}  # fmt: skip

_LOSSES = {
    "MSELoss": "mse_loss", "L1Loss": "l1_loss", "HuberLoss": "huber_loss", "SmoothL1Loss": "smooth_l1_loss",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
}  # fmt: skip


def _loss(name: str) -> Callable[..., Callable[..., Value]]:
    """A loss as a module, called with two tensors."""

    def made(**options: Any) -> Callable[..., Value]:
        kept = {key: value for key, value in options.items() if value is not None}
        return lambda x, target: FUSABLE[name](x, target, **kept)

    return made


LAYERS: dict[str, Callable[..., Layer]] = {
    "Linear": _linear,
    "Conv2d": _conv2d,
    "LayerNorm": _layer_norm,
    "RMSNorm": _rms_norm,
    **TRAINING_LAYERS,
    **{name: _loss(function) for name, function in _LOSSES.items()},
    "Identity": lambda *ignored, **also: lambda x, path: x,
    "Flatten": lambda start_dim=1, end_dim=-1: lambda x, path: flatten(x, start_dim, end_dim),
    **{name: _stateless(function, FUSABLE) for name, function in _ACTIVATIONS.items()},
    **{name: _stateless(function, LIBRARY) for name, function in _SHAPING.items()},
}
