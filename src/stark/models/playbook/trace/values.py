"""The graph of a traced model: values of known shape, each made by one operation."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

TRANSCENDENTAL = frozenset({"exp", "log", "erf", "tanh", "sigmoid", "sin", "cos"})
UNARY = TRANSCENDENTAL | {"neg", "abs", "sqrt", "rsqrt"}
# alias: the same numbers under another shape
POINTWISE = UNARY | {"add", "sub", "mul", "div", "max2", "min2", "alias"}
REDUCTIONS = frozenset({"sum", "max", "min", "argmax", "var"})

Shape = tuple[int, ...]


INTEGERS, NUMBERS = "integers", "numbers"


class Unsupported(Exception):
    """Something the playbook does not support, named in plain words."""


@dataclass(frozen=True, eq=False)
class Value:
    """One tensor. ``text`` is the Python expression of an input or weight, or a library call with {0}, {1}, ...

    A reduction runs over its argument's last ``dims`` dimensions; ``squeezed`` removes them from its shape.
    ``batched_args`` are the arguments whose first dimension a library call keeps, slice by slice. ``layer`` is the
    Python expression of a convolution. ``out_call`` is the same call with {out} for the result, ``packed_call`` the
    same with packed weights.
    """

    op: str
    shape: Shape
    args: tuple[Operand, ...] = ()
    text: str = ""
    dims: int = 0
    squeezed: bool = False
    batched_args: tuple[int, ...] = ()
    layer: str = ""
    out_call: str = ""
    packed_call: str = ""
    is_view: bool = False
    holds: str = ""  # INTEGERS or NUMBERS, where the operation does not tell

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def is_fusable(self) -> bool:
        """True if a fused kernel can compute it."""
        return self.op in POINTWISE or self.op in REDUCTIONS

    @property
    def is_integer(self) -> bool:
        """True if it holds indices; everything else is floating-point numbers."""
        if self.holds:
            return self.holds == INTEGERS
        return self.op == "argmax" or (self.op == "library" and any(each.is_integer for each in self.values))

    @property
    def values(self) -> tuple[Value, ...]:
        """The arguments that are tensors."""
        return tuple(each for each in self.args if isinstance(each, Value))


Operand = Value | float


def pointwise(op: str, *args: Operand) -> Value:
    """An operation on each element, with broadcasting."""
    for each in args:
        if not isinstance(each, Value | int | float):
            raise Unsupported(f"{op} of a {type(each).__name__}")
        if isinstance(each, Value) and each.is_integer:
            raise Unsupported(f"{op} of integers")
    shape = broadcast([each.shape for each in args if isinstance(each, Value)])
    squeezed = any(each.squeezed for each in args if isinstance(each, Value) and each.is_fusable)
    return Value(op, shape, tuple(args), squeezed=squeezed)


def reduce(op: str, x: Value, dim: object = None, keepdim: bool = False) -> Value:
    """A reduction over the last dimensions, or over all of them."""
    if x.is_integer:
        raise Unsupported(f"{op} of places that argmax found")
    rank = len(x.shape)
    named = range(rank) if dim is None else dim if isinstance(dim, tuple | list) else (dim,)
    dims = sorted(each % rank if isinstance(each, int) and rank else -1 for each in named)
    count = len(dims)
    if count == 0 or dims != list(range(rank - count, rank)):
        raise Unsupported(f"a reduction of {rank} dimensions over {dim}, which are not the last ones")
    shape = x.shape[: rank - count] + ((1,) * count if keepdim else ())
    return Value(op, shape, (x,), dims=count, squeezed=not keepdim)


def broadcast(shapes: list[Shape]) -> Shape:
    """The common shape of several, aligned at their ends."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    for column in zip(*padded, strict=True):
        if len(set(column) - {1}) > 1:
            raise Unsupported(f"tensors of the shapes {shapes} in one operation")
    return tuple(max(column) if 0 not in column else 0 for column in zip(*padded, strict=True))
