"""Broadcasts the tensors that a kernel reads over its rows and columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from stark.models.playbook.trace.values import REDUCTIONS, Shape, Unsupported, Value


@dataclass(frozen=True)
class Access:
    """The place of a leaf: ``row`` is the Python and C++ expression of its row, empty if it has none."""

    row: str
    column: bool


Layout = Callable[[Value], Shape]  # the dimensions of a value in memory order


def plain(value: Value) -> Shape:
    """PyTorch's default layout."""
    return value.shape


def channels_last(value: Value) -> Shape:
    """Images with the channels of a pixel next to each other."""
    batch, channels, *pixels = (1,) * (4 - len(value.shape)) + value.shape
    if value.op == "weight" and sum(size > 1 for size in value.shape) > 1:
        raise Unsupported(f"a weight of the shape {value.shape} with its channels last")
    return batch, *pixels, channels


def find_accesses(order: list[Value], lead: Shape, trail: Shape, layout: Layout = plain) -> dict[Value, Access]:
    """Find the access of each leaf, for rows of ``lead`` and columns of ``trail``."""
    found: dict[Value, Access] = {}
    for user in order:
        for leaf in user.values:
            if leaf in order:
                continue
            squeezed = user.squeezed and user.op not in REDUCTIONS and len(user.shape) == len(lead)
            access = _access(layout(leaf), lead, () if squeezed else trail)
            if found.setdefault(leaf, access) != access:
                raise Unsupported("a tensor that is read in two ways")
    return found


def _access(shape: Shape, lead: Shape, trail: Shape) -> Access:
    """The access of a tensor of this shape."""
    padded = (1,) * (len(lead) + len(trail) - len(shape)) + shape
    if len(padded) != len(lead) + len(trail):
        raise Unsupported(f"a tensor of the shape {shape} among rows of {lead}")
    head, tail = padded[: len(lead)], padded[len(lead) :]
    if any(size != 1 for size in tail) and tail != trail:
        raise Unsupported(f"a tensor of the shape {shape} in columns of {trail}")
    return Access(_row(head, lead), any(size != 1 for size in tail))


def _row(head: Shape, lead: Shape) -> str:
    own = [place for place, size in enumerate(head) if size != 1]
    if not own:
        return ""
    first, last = own[0], own[-1] + 1
    if head[first:last] != lead[first:last]:
        raise Unsupported(f"how rows of {head} are broadcast to {lead}")
    inner, size, outer = prod(lead[last:]), prod(lead[first:last]), prod(lead[:first])
    row = f"(row / {inner})" if inner > 1 else "row"
    return f"({row} % {size})" if outer > 1 else row
