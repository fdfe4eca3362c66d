"""Traces a call of the reference: which operators ran, and which memory each of them read and wrote.

The call runs on real tensors, so nothing has to be simulated. Memory is followed by storage: views of one tensor share
it, and an operator that returns a view reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stark_worker.roofline import operators

Key = int  # of a storage
MANY_ZEROS = 0.1  # of the values of an operand


class Region(NamedTuple):
    """The part of a storage that a tensor shows."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Region:
        """Return the region, without dimensions along which nothing more is reached."""
        reached = [pair for pair in zip(tensor.shape, tensor.stride(), strict=True) if pair[0] != 1 and pair[1]]
        shape, stride = zip(*reached, strict=True) if reached else ((), ())
        return cls(int(tensor.storage_offset()), shape, stride, tensor.itemsize)


@dataclass(frozen=True)
class Step:
    """An operator that ran: its name, the memory that it read and wrote, and its products."""

    name: str
    reads: tuple[tuple[Key, Region], ...]
    writes: frozenset[Key]
    is_cheap: bool
    operations: int | None  # of products
    dtype: torch.dtype | None  # of the first tensor
    operands: tuple[frozenset[Key], ...]  # by argument
    is_mask: bool
    is_fast_convolution: bool
    has_zeros: bool  # in an operand of a product that the caller gave
    has_sparse: bool


@dataclass
class Trace:
    """All steps of a call, in order, and the memory that was there before it."""

    inputs: frozenset[Key]
    weights: frozenset[Key]
    steps: list[Step] = field(default_factory=list)
    outputs: dict[Key, list[Region]] = field(default_factory=dict)
    sizes: dict[Key, int] = field(default_factory=dict)  # bytes of each storage
    written: dict[Key, list[Region]] = field(default_factory=dict)  # regions of inputs that the call changed


def trace_call(
    call: Callable[[], Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], weights: Iterable[torch.Tensor]
) -> Trace:
    """Return the trace of a call on these inputs by a model with these weights and buffers."""
    tracer = Tracer(inputs, weights)
    with tracer:
        outputs = call()
    for output in outputs:
        tracer.trace.outputs.setdefault(tracer.key(output), []).append(Region.of(output))
    return tracer.trace


class Tracer(TorchDispatchMode):
    """Records every operator that runs."""

    def __init__(self, inputs: Sequence[torch.Tensor], weights: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages: dict[Key, StorageWeakRef] = {}  # as long as a reference is kept, its key is not used again
        self.trace = Trace(frozenset(), frozenset())
        self.trace.inputs = frozenset(map(self.key, _strided(inputs)))
        self.trace.weights = frozenset(map(self.key, _strided(weights))) - self.trace.inputs

    def key(self, tensor: torch.Tensor) -> Key:
        """Return the key of a tensor's storage."""
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        if reference.cdata not in self._storages:
            self._storages[reference.cdata] = reference
        self.trace.sizes[reference.cdata] = max(storage.nbytes(), self.trace.sizes.get(reference.cdata, 0))
        return int(reference.cdata)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = _bind(func, args, kwargs or {})
        changed = [arguments[each.name] for each in func._schema.arguments if _is_written(each)]
        given = {name: list(_strided(tree_leaves(value))) for name, value in arguments.items()}
        has_zeros = operators.is_product(func) and self._has_zeros(given)
        out = func(*args, **(kwargs or {}))
        self._record(func, arguments, given, list(_strided(tree_leaves(changed))), out, has_zeros)
        return out

    def _record(
        self,
        func: Any,
        arguments: dict[str, Any],
        given: dict[str, list[torch.Tensor]],
        changed: list[torch.Tensor],
        out: Any,
        has_zeros: bool,
    ) -> None:
        name = operators.name_of(func)
        tensors = [each for group in given.values() for each in group]
        read = [each for each in tensors if name != "copy" or all(each is not other for other in changed)]
        written = frozenset(map(self.key, [*_strided(tree_leaves(out)), *changed]))
        if not changed and written and written <= set(map(self.key, read)):
            return  # a view
        step = Step(
            name=name,
            reads=() if name in operators.READ_NOTHING else tuple((self.key(each), Region.of(each)) for each in read),
            writes=written,
            is_cheap=operators.is_cheap(func),
            operations=operators.count_products(func, arguments, out),
            dtype=tensors[0].dtype if tensors else None,
            operands=tuple(frozenset(map(self.key, group)) for group in given.values() if group),
            is_mask=operators.is_mask(func, arguments),
            is_fast_convolution=operators.is_fast_convolution(func, arguments),
            has_zeros=has_zeros,
            has_sparse=any(not _is_strided(each) for each in tree_leaves([arguments, out])),
        )
        self.trace.steps.append(step)
        for each in changed:
            if (key := self.key(each)) in self.trace.inputs:
                self.trace.written.setdefault(key, []).append(Region.of(each))

    def _has_zeros(self, given: dict[str, list[torch.Tensor]]) -> bool:
        """True if an operand that was there before the call holds many zeros, as triangular matrices do."""
        there = self.trace.inputs | self.trace.weights
        matrices = (each for group in given.values() for each in group if each.dim() > 1 and self.key(each) in there)
        return any(int(torch.count_nonzero(each)) < (1 - MANY_ZEROS) * each.numel() for each in matrices)


def _bind(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by name, also those left at their default."""
    found = {}
    for place, argument in enumerate(func._schema.arguments):
        if place < len(args):
            found[argument.name] = args[place]
        elif argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
    return found


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _is_strided(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.layout == torch.strided


def _strided(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    return (each for each in values if isinstance(each, torch.Tensor) and each.layout == torch.strided)
