"""Partitions the graph of a task into library calls and fused kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from stark.models.playbook.fusion.access import Access, Layout, find_accesses, plain
from stark.models.playbook.fusion.kernel import Kernel, Level
from stark.models.playbook.trace.program import Program
from stark.models.playbook.trace.values import POINTWISE, REDUCTIONS, Shape, Unsupported, Value

MIN_ROWS = 64  # to share between the cores


@dataclass(frozen=True)
class Step:
    """One step of execution: a library call or a kernel."""

    value: Value
    kernel: Kernel | None = None


def plan_steps(program: Program, layout: Layout = plain) -> list[Step]:
    """Library calls and kernels in the order of execution. ``layout`` is for images between library calls."""
    sinks = _find_sinks(program)
    steps: list[Step] = []
    done: set[Value] = set()

    def visit(value: Value) -> None:
        if value in done or value.op in ("input", "weight"):
            return
        done.add(value)
        if value.op == "created":
            raise Unsupported("a tensor that forward() makes")
        if value not in sinks:
            for each in value.values:
                visit(each)
            steps.append(Step(value))
            return
        for leaf in _find_leaves(value, sinks):
            visit(leaf)
        fits = value not in program.outputs and len(value.shape) == 4 and _fits(value, sinks, layout)
        number = sum(step.kernel is not None for step in steps)
        steps.append(Step(value, _build_kernel(value, sinks, number, layout if fits else plain)))

    for output in program.outputs:
        visit(output)
    return steps


def _find_sinks(program: Program) -> set[Value]:
    """The fusable values that must be in memory: outputs, and inputs of library calls or other kernels."""
    everything = list(_find_ancestors(program.outputs))
    sinks = {each for each in program.outputs if each.is_fusable}
    sinks |= {each for value in everything if not value.is_fusable for each in value.values if each.is_fusable}
    for value in everything:
        if value.op in POINTWISE:  # totals that elements need
            sinks |= {each for each in value.values if each.size < value.size and _has_total(each)}
        elif value.op in ("argmax", "var"):
            sinks |= {each for each in value.values if each.squeezed}
    while conflict := _find_conflict(sinks):
        sinks.add(conflict)
    return sinks


def _find_conflict(sinks: set[Value]) -> Value | None:
    """A reduction whose dimensions do not fit the rest of its kernel."""
    for sink in sinks:
        rows = [each for each in _find_members(sink, sinks) if each.op in REDUCTIONS and not _is_total(each)]
        for each in rows[:-1]:
            if _reduction_shapes(each) != _reduction_shapes(rows[-1]):
                return each
        if rows and rows[-1] is not sink and not _fits(sink, sinks):
            return rows[-1]
    return None


def _fits(sink: Value, sinks: set[Value], layout: Layout = plain) -> bool:
    try:
        _build_kernel(sink, sinks, 0, layout)
    except Unsupported:
        return False
    return True


def _reduction_shapes(reduction: Value) -> tuple[Shape, Shape]:
    shape = reduction.values[0].shape
    cut = len(shape) - reduction.dims
    return shape[:cut], shape[cut:]


def _is_total(value: Value) -> bool:
    """True for a reduction over everything. A vector is one row, unless it is made of rows itself."""
    if value.op not in ("sum", "max", "min"):
        return False
    argument = value.values[0]
    return value.dims == len(argument.shape) and (value.dims > 1 or argument.squeezed)


def _has_total(value: Value) -> bool:
    """True if the value contains a total that its own kernel computes."""
    return _is_total(value) or (value.op in POINTWISE and any(map(_has_total, value.values)))


def _find_ancestors(values: tuple[Value, ...]) -> Iterator[Value]:
    seen: set[Value] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if value not in seen:
            seen.add(value)
            pending += value.values
            yield value


def _find_members(sink: Value, sinks: set[Value]) -> list[Value]:
    """The values that the sink's kernel computes, each after its arguments."""
    found: list[Value] = []

    def visit(value: Value) -> None:
        if value in found or not value.is_fusable or (value in sinks and value is not sink):
            return
        for each in value.values:
            visit(each)
        found.append(value)

    visit(sink)
    return found


def _find_leaves(sink: Value, sinks: set[Value]) -> list[Value]:
    members = _find_members(sink, sinks)
    return list(dict.fromkeys(each for value in members for each in value.values if each not in members))


def _build_kernel(sink: Value, sinks: set[Value], number: int, layout: Layout = plain) -> Kernel:
    order = _find_members(sink, sinks)
    lead, trail, leaves = _split_shape(sink, order, layout)
    levels = _find_levels(order, leaves)
    sizes = {Level.TOTAL: 1, Level.ROW: prod(lead), Level.ELEMENT: prod(lead) * prod(trail)}
    if sink.size != sizes[levels[sink]]:
        raise Unsupported(f"how {prod(lead)} rows of {prod(trail)} become a tensor of the shape {sink.shape}")
    stages: dict[Value, int] = {}
    for each in order:
        before = max((stages.get(arg, 0) for arg in each.values), default=0)
        stages[each] = before + (each.op in REDUCTIONS and not _is_total(each))
    return Kernel(f"fused_{number}", sink, leaves, tuple(order), prod(lead), prod(trail), levels, stages, layout)


def _split_shape(sink: Value, order: list[Value], layout: Layout) -> tuple[Shape, Shape, dict[Value, Access]]:
    """Split the shape into rows and columns: at the reductions, or into MIN_ROWS long rows."""
    if layout is not plain and any(each.op in REDUCTIONS for each in order):
        raise Unsupported("a reduction over other dimensions than those that lie last in memory")
    rows = [each for each in order if each.op in REDUCTIONS and not _is_total(each)]
    if rows:
        lead, trail = _reduction_shapes(rows[-1])
        return lead, trail, find_accesses(order, lead, trail)
    totals = [each.values[0].shape for each in order if each.op in REDUCTIONS]
    whole = totals[-1] if totals else layout(sink)
    possible = [cut for cut in range(len(whole) + 1) if _is_readable(order, whole, cut, layout)]
    if not possible:
        raise Unsupported(f"how tensors are broadcast to {whole}")
    enough = [cut for cut in possible if prod(whole[:cut]) >= MIN_ROWS and cut < len(whole)]
    cut = enough[0] if enough else max([each for each in possible if each < len(whole)], default=possible[0])
    return whole[:cut], whole[cut:], find_accesses(order, whole[:cut], whole[cut:], layout)


def _is_readable(order: list[Value], whole: Shape, cut: int, layout: Layout) -> bool:
    try:
        find_accesses(order, whole[:cut], whole[cut:], layout)
    except Unsupported:
        return False
    return True


def _find_levels(order: list[Value], leaves: dict[Value, Access]) -> dict[Value, Level]:
    levels = {leaf: Level.ELEMENT if access.column else Level.ROW for leaf, access in leaves.items()}
    for value in order:
        given = [levels[each] for each in value.values]
        if _is_total(value):
            levels[value] = Level.TOTAL
        elif value.op in REDUCTIONS:
            levels[value] = Level.ROW
        else:
            levels[value] = max(given, default=Level.ROW)
    return {value: level for value, level in levels.items() if value in order}
