"""Operations of models in use: dropout that drops nothing, batch norm by running statistics, embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stark.models.playbook.trace.operations import Handler, add
from stark.models.playbook.trace.values import NUMBERS, Shape, Unsupported, Value, pointwise

F = "torch.nn.functional"
EVALUATION = "capture the module after module.eval(), or call self.eval() in Model's constructor"
Layer = Callable[[Value, str], Value]


def dropout(x: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:
    if p and training:
        raise Unsupported(f"dropout in training mode; {EVALUATION}")
    return x


def batch_norm(
    x: Value,
    running_mean: Value,
    running_var: Value,
    weight: Value | None = None,
    bias: Value | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Value:
    """Batch norm by running statistics: a scale and a shift for each channel."""
    if training or not isinstance(running_mean, Value):
        raise Unsupported(f"batch norm in training mode; {EVALUATION}")
    mean, variance = (_for_channels(each, x.shape) for each in (running_mean, running_var))
    root = pointwise("rsqrt", add(variance, eps))
    made = pointwise("mul", pointwise("sub", x, mean), root)
    made = made if weight is None else pointwise("mul", made, _for_channels(weight, x.shape))
    return made if bias is None else add(made, _for_channels(bias, x.shape))


def _for_channels(weight: Value, shape: Shape) -> Value:
    """A weight for each channel, shaped as the second dimension."""
    ones = (1,) * (len(shape) - 2)
    if weight.op != "weight" or not ones:
        return weight
    return Value("weight", (*weight.shape, *ones), text=f"{weight.text}.view({', '.join(map(str, (-1, *ones)))})")


def embedding(x: Value, weight: Value, padding_idx: int | None = None) -> Value:
    call = f"{F}.embedding({{0}}, {{1}})"
    return Value("library", (*x.shape, weight.shape[1]), (x, weight), call, batched_args=(0,), holds=NUMBERS)


def expand(x: Value, *sizes: Any) -> Value:
    given = list(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes)
    old = (1,) * (len(given) - len(x.shape)) + x.shape
    shape = tuple(own if size == -1 else size for own, size in zip(old, given, strict=True))
    return x if shape == x.shape else Value("library", shape, (x,), f"{{0}}.expand({shape})", is_view=True)


def parts(x: Value, sizes: list[int], dim: int) -> list[Value]:
    """Parts of a tensor along one dimension, as views."""
    place, start, found = dim % len(x.shape), 0, []
    for size in sizes:
        shape = (*x.shape[:place], size, *x.shape[place + 1 :])
        call = f"{{0}}.narrow({place}, {start}, {size})"
        found.append(Value("library", shape, (x,), call, batched_args=(0,) if place else (), is_view=True))
        start += size
    return found


def chunk(x: Value, chunks: int, dim: int = 0) -> list[Value]:
    total = x.shape[dim % len(x.shape)]
    return split(x, -(-total // chunks), dim)


def split(x: Value, sizes: Any, dim: int = 0) -> list[Value]:
    total = x.shape[dim % len(x.shape)]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - start) for start in range(0, total, sizes)]
    return parts(x, list(sizes), dim)


def unbind(x: Value, dim: int = 0) -> list[Value]:
    place = dim % len(x.shape)
    shape = (*x.shape[:place], *x.shape[place + 1 :])
    batched_args = (0,) if place else ()
    return [
        Value("library", shape, (x,), f"{{0}}.select({place}, {number})", batched_args=batched_args, is_view=True)
        for number in range(x.shape[place])
    ]


def index(x: Value, keys: list[Any]) -> Value:
    """A part ``x[keys]`` of a tensor, by numbers, slices, None and Ellipsis."""
    used = sum(each is not None and each is not Ellipsis for each in keys)
    filled: list[Any] = []
    for each in keys if Ellipsis in keys else [*keys, Ellipsis]:
        filled += [slice(None)] * (len(x.shape) - used) if each is Ellipsis else [each]
    shape: list[int] = []
    sizes = iter(x.shape)
    for each in filled:
        if each is None:
            shape.append(1)
            continue
        size = next(sizes)
        if isinstance(each, slice):
            shape.append(len(range(*each.indices(size))))
        elif not isinstance(each, int):
            raise Unsupported("a part of a tensor that a tensor names")
    text = ", ".join(_format_key(each) for each in filled)
    batched_args = (0,) if filled and filled[0] == slice(None) else ()
    return Value("library", tuple(shape), (x,), f"{{0}}[{text}]", batched_args=batched_args, is_view=True)


def _format_key(key: Any) -> str:
    if not isinstance(key, slice):
        return str(key)
    ends = ["" if each is None else str(each) for each in (key.start, key.stop, key.step)]
    return ":".join(ends if key.step is not None else ends[:2])


def roll(x: Value, shifts: Any, dims: Any) -> Value:
    return Value("library", x.shape, (x,), f"torch.roll({{0}}, {shifts!r}, {dims!r})")


def concatenate(tensors: list[Value], dim: int = 0) -> Value:
    first, place = tensors[0], dim % len(tensors[0].shape)
    shape = (*first.shape[:place], sum(each.shape[place] for each in tensors), *first.shape[place + 1 :])
    listed = ", ".join(f"{{{number}}}" for number, _ in enumerate(tensors))
    return Value("library", shape, tuple(tensors), f"torch.cat(({listed},), {place})")


def addmm(bias: Value, x: Value, y: Value) -> Value:
    return Value("library", (x.shape[0], y.shape[1]), (bias, x, y), "torch.addmm({0}, {1}, {2})", batched_args=(1,))


INFERENCE: dict[str, Handler] = {
    "dropout": dropout,
    "dropout2d": dropout,
    "batch_norm": batch_norm,
    "embedding": lambda x, weight, padding_idx=None, *rest: embedding(*_integers_first(x, weight)),
    "cat": concatenate,
    "addmm": addmm,
    "expand": expand,
    "chunk": chunk,
    "split": split,
    "unbind": unbind,
    "roll": roll,
    "to": lambda x, *ignored, **also: x,
    "type_as": lambda x, other: x,
    "clone": lambda x, **also: x,
    "detach": lambda x: x,
}


def _integers_first(x: Value, weight: Value) -> tuple[Value, Value]:
    return (x, weight) if x.is_integer else (weight, x)


# -- layers -----------------------------------------------------------------------------------------------------------


def _embedding(num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, **others: Any) -> Layer:
    if any(others.values()):
        raise Unsupported("an embedding with a norm or sparse gradients")

    def made(x: Value, path: str) -> Value:
        if not x.is_integer:
            raise Unsupported("an embedding of something other than integers")
        return Value("library", (*x.shape, embedding_dim), (x,), f"{path}({{0}})", batched_args=(0,), holds=NUMBERS)

    return made


def _batch_norm(
    num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, track_running_stats: bool = True
) -> Layer:
    if not track_running_stats:
        raise Unsupported("batch norm without running statistics")

    def made(x: Value, path: str) -> Value:
        names = ("running_mean", "running_var", *(("weight", "bias") if affine else ()))
        weights = {name: Value("weight", (num_features,), text=f"{path}.{name}") for name in names}
        return batch_norm(x, **weights, eps=eps)  # type: ignore[arg-type]

    return made


def _refuse(name: str) -> Callable[..., Layer]:
    def made(*args: Any, **options: Any) -> Layer:
        def refuse(x: Value, path: str) -> Value:
            raise Unsupported(f"{name} in training mode; {EVALUATION}")

        drops_nothing = name == "dropout" and (args[0] if args else options.get("p", 0.5)) == 0
        return _same() if drops_nothing else refuse

    return made


def _same(*args: Any, **options: Any) -> Layer:
    return lambda x, path: x


_DROPOUTS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout")
_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
TRAINING_LAYERS: dict[str, Callable[..., Layer]] = {
    **dict.fromkeys(_DROPOUTS, _refuse("dropout")),
    **dict.fromkeys(_NORMS, _refuse("batch norm")),
    "Embedding": _embedding,
}
EVALUATION_LAYERS: dict[str, Callable[..., Layer]] = {
    **dict.fromkeys(_DROPOUTS, _same),
    **dict.fromkeys(_NORMS, _batch_norm),
}
