"""What the playbook understands of a model: a graph of values, each made by one operation of known shape."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

TRANSCENDENTAL = frozenset({"exp", "log", "erf", "tanh", "sigmoid", "sin", "cos"})
UNARY = TRANSCENDENTAL | {"neg", "abs", "sqrt", "rsqrt"}
# alias: the same numbers under another shape
POINTWISE = UNARY | {"add", "sub", "mul", "div", "max2", "min2", "alias"}
REDUCTIONS = frozenset({"sum", "max", "min", "argmax", "var"})

Shape = tuple[int, ...]


class Unknown(Exception):
    """Something the playbook has no move for, in plain words."""


@dataclass(frozen=True, eq=False)
class Value:
    """One tensor. ``text`` is the Python that names an input or weight, or a library call with {0}, {1} for arguments.

    A reduction runs over its argument's last ``dims`` dimensions; ``squeezed``: these are gone from its shape.
    ``through`` are the arguments of a library call whose first dimension is its own, slice by slice; ``layer`` is the
    Python that names a convolution. ``into`` is the same call with {out} for where the result is to go, ``packed`` the
    same with weights that were prepared.
    """

    op: str
    shape: Shape
    args: tuple[Operand, ...] = ()
    text: str = ""
    dims: int = 0
    squeezed: bool = False
    through: tuple[int, ...] = ()
    layer: str = ""
    into: str = ""
    packed: str = ""

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def fusable(self) -> bool:
        """Whether a kernel of ours computes it; everything else is given or comes from a library."""
        return self.op in POINTWISE or self.op in REDUCTIONS

    @property
    def integer(self) -> bool:
        """Whether it holds places; everything else is floating-point numbers."""
        return self.op == "argmax" or (self.op == "library" and any(each.integer for each in self.values))

    @property
    def values(self) -> tuple[Value, ...]:
        """The arguments that are tensors."""
        return tuple(each for each in self.args if isinstance(each, Value))


Operand = Value | float


def pointwise(op: str, *args: Operand) -> Value:
    """An operation on each element, with broadcasting."""
    for each in args:
        if not isinstance(each, Value | int | float):
            raise Unknown(f"{op} of a {type(each).__name__}")
        if isinstance(each, Value) and each.integer:
            raise Unknown(f"{op} of places that argmax found")
    shape = broadcast([each.shape for each in args if isinstance(each, Value)])
    squeezed = any(each.squeezed for each in args if isinstance(each, Value) and each.fusable)
    return Value(op, shape, tuple(args), squeezed=squeezed)


def reduce(op: str, x: Value, dim: object = None, keepdim: bool = False) -> Value:
    """A reduction over the last dimensions, or over all of them."""
    if x.integer:
        raise Unknown(f"{op} of places that argmax found")
    rank = len(x.shape)
    named = range(rank) if dim is None else dim if isinstance(dim, tuple | list) else (dim,)
    dims = sorted(each % rank if isinstance(each, int) and rank else -1 for each in named)
    count = len(dims)
    if count == 0 or dims != list(range(rank - count, rank)):
        raise Unknown(f"a reduction of {rank} dimensions over {dim}, which are not the last ones")
    shape = x.shape[: rank - count] + ((1,) * count if keepdim else ())
    return Value(op, shape, (x,), dims=count, squeezed=not keepdim)


def broadcast(shapes: list[Shape]) -> Shape:
    """The common shape of several, aligned at their ends."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    for column in zip(*padded, strict=True):
        if len(set(column) - {1}) > 1:
            raise Unknown(f"tensors of the shapes {shapes} in one operation")
    return tuple(max(column) if 0 not in column else 0 for column in zip(*padded, strict=True))
