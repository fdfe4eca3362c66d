"""Reduces a trace to the least work of a call, and to what makes the count doubtful.

Only steps count that depend on the inputs and lead to an output. Weights that other weights are computed from count as
themselves: a candidate may have prepared them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import prod

import torch

from stark_worker.protocol.bound import Arithmetic, Reason, Work
from stark_worker.roofline import operators
from stark_worker.roofline.speed_of_light import Suspicion
from stark_worker.roofline.trace import Key, Region, Step, Trace

MAX_MARKED = 2**30  # elements of a storage whose regions are marked one by one
ARITHMETIC = {
    torch.float64: Arithmetic.FP64,
    torch.float32: Arithmetic.FP32,
    torch.float16: Arithmetic.FP16,
    torch.bfloat16: Arithmetic.BF16,
}
MAX_NAMES = 6  # of operators in one doubt


def least_work(trace: Trace, tf32: bool = False) -> tuple[Work, tuple[Suspicion, ...]]:
    """Return the work of a traced call, and all suspicions. ``tf32`` counts fp32 products as TF32."""
    depends = _depending(trace)
    live = _leading(trace)
    used = _regions_read(trace, live)
    operations: dict[str, int] = defaultdict(int)
    for step in live:
        if step.operations and _reads(step) & depends:
            operations[_arithmetic(step, tf32).value] += step.operations
    work = Work(
        sum(_bytes(trace, key, regions) for key, regions in used.items() if key in trace.inputs),
        sum(_bytes(trace, key, regions) for key, regions in used.items() if key in trace.weights),
        _output_bytes(trace, depends),
        dict(operations),
    )
    return work, tuple(_suspicions(trace, live, depends))


def _reads(step: Step) -> set[Key]:
    return {key for key, _ in step.reads}


def _arithmetic(step: Step, tf32: bool) -> Arithmetic:
    kind = ARITHMETIC.get(step.dtype, Arithmetic.OTHER) if step.dtype else Arithmetic.OTHER
    return Arithmetic.TF32 if tf32 and kind is Arithmetic.FP32 else kind


def _depending(trace: Trace) -> set[Key]:
    """Return the memory whose content depends on the inputs, at any time."""
    depends = set(trace.inputs)
    for step in trace.steps:
        if _reads(step) & depends:
            depends |= step.writes
    return depends


def _leading(trace: Trace) -> list[Step]:
    """Return the steps that lead to an output, or to a change of an input."""
    wanted = {*trace.outputs, *trace.written}
    live = []
    for step in reversed(trace.steps):
        if step.writes & wanted or step.name in operators.CONTROLS:
            live.append(step)
            wanted |= _reads(step)
    return live[::-1]


def _regions_read(trace: Trace, live: Iterable[Step]) -> dict[Key, list[Region]]:
    """Return the regions of each memory that these steps read."""
    used: dict[Key, list[Region]] = defaultdict(list)
    for step in live:
        for key, region in step.reads:
            used[key].append(region)
    return used


def _output_bytes(trace: Trace, depends: set[Key]) -> int:
    """Return the bytes of outputs that are new and depend on the inputs, and of inputs that the call changes."""
    new = {key: regions for key, regions in trace.outputs.items() if key in depends and key not in trace.inputs}
    written = {**new, **trace.written}
    return sum(_bytes(trace, key, regions) for key, regions in written.items() if key not in trace.weights)


def _bytes(trace: Trace, key: Key, regions: list[Region]) -> int:
    """Return the bytes of a storage that lie in at least one of the regions."""
    different = set(regions)
    most = trace.sizes[key]
    largest = max((_region_bytes(region) for region in different), default=0)
    if len(different) <= 1 or largest >= most:
        return min(largest, most)
    itemsize = next(iter(different)).itemsize
    if most > MAX_MARKED * itemsize or any(region.itemsize != itemsize for region in different):
        return min(largest, most)
    marks = torch.zeros(most // itemsize, dtype=torch.bool)
    for region in different:
        marks.as_strided(region.shape, region.stride, region.offset).fill_(True)
    return int(marks.sum()) * itemsize


def _region_bytes(region: Region) -> int:
    """Return the bytes that a region reaches. Its parts may overlap, as windows do."""
    extent = 1 + sum((size - 1) * step for size, step in zip(region.shape, region.stride, strict=True))
    return max(min(prod(region.shape), extent), 0) * region.itemsize


# -- what makes a count doubtful ------------------------------------------------------------------------------------


def _suspicions(trace: Trace, live: list[Step], depends: set[Key]) -> list[Suspicion]:
    found = [
        *_by_names(Reason.CONTROL, (step for step in live if step.name in operators.CONTROLS), depends),
        *_by_names(Reason.SPARSE, (step for step in live if step.has_sparse), None),
        *_by_names(Reason.UNCOUNTED, (step for step in live if step.operations is None and not step.is_cheap), depends),
        *_gathers(trace, live),
        *_fast_convolutions(live),
        *ProductFlow(live, depends).find(),
    ]
    return found


def _by_names(reason: Reason, steps: Iterable[Step], depends: set[Key] | None) -> list[Suspicion]:
    names = sorted({step.name for step in steps if depends is None or _reads(step) & depends})
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return [Suspicion(reason, ", ".join(names[:MAX_NAMES]) + more)] if names else []


def _gathers(trace: Trace, live: list[Step]) -> list[Suspicion]:
    """Suspect tables that lie in memory and of which the data picks parts."""
    tables = trace.inputs | trace.weights
    picked = {(step.name, key) for step in live if step.name in operators.GATHERS for key in _table(step) & tables}
    size = sum(trace.sizes[key] for key in {key for _, key in picked})
    return [Suspicion(Reason.GATHER, ", ".join(sorted({name for name, _ in picked})), bytes=size)] if picked else []


def _table(step: Step) -> frozenset[Key]:
    return step.operands[0] if step.operands else frozenset()


def _fast_convolutions(live: list[Step]) -> list[Suspicion]:
    count = sum(step.operations or 0 for step in live if step.is_fast_convolution)
    return [Suspicion(Reason.CONVOLUTION, operations=count)] if count else []


class ProductFlow:
    """Follows results of products to where they are summed, multiplied again or masked: less would have sufficed."""

    def __init__(self, live: list[Step], depends: set[Key]) -> None:
        self._live, self._depends = live, depends
        self._origins: dict[Key, frozenset[int]] = {}  # the products of which memory holds a linear function
        self._masked: set[Key] = set()
        self._shorter: set[int] = set()  # products that shorter algebra avoids
        self._layers: set[int] = set()  # products of data with weights alone
        self._maskings: set[str] = set()

    def find(self) -> list[Suspicion]:
        """Return suspicions of shorter algebra and of masked work."""
        for number, step in enumerate(self._live):
            self._follow(number, step)
        count = sum(self._live[number].operations or 0 for number in self._shorter)
        found = [Suspicion(Reason.ALGEBRA, operations=count)] if count else []
        return found + ([Suspicion(Reason.MASK, ", ".join(sorted(self._maskings)))] if self._maskings else [])

    def _follow(self, number: int, step: Step) -> None:
        origins = frozenset[int]().union(*(self._origins.get(key, frozenset()) for key in _reads(step)))
        is_masked = bool(self._masked & _reads(step))
        if step.operations:
            self._multiply(number, step, origins, is_masked)
            return
        if step.name in operators.SUMS:
            self._shorter |= origins
        if (step.is_mask or step.name in operators.GATHERS) and origins:
            self._maskings.add(step.name)
        for key in step.writes:
            self._origins[key] = origins if self._is_linear(step) else frozenset()
            if step.is_mask or (is_masked and step.is_cheap):
                self._masked.add(key)

    def _multiply(self, number: int, step: Step, origins: frozenset[int], is_masked: bool) -> None:
        if is_masked or step.is_mask or step.has_zeros:
            self._maskings.add(step.name)
        if self._is_layer(step):
            self._shorter |= origins & self._layers
            self._layers.add(number)
        for key in step.writes:
            self._origins[key] = frozenset({number})

    def _is_layer(self, step: Step) -> bool:
        """True if a product multiplies data by weights alone, and is no convolution."""
        return len([keys for keys in step.operands if keys & self._depends]) == 1 and "conv" not in step.name

    def _is_linear(self, step: Step) -> bool:
        depending = len([keys for keys in step.operands if keys & self._depends])
        return step.name in operators.LINEAR or (step.name in operators.LINEAR_WITH_NUMBERS and depending <= 1)
