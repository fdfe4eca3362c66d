"""From the graph of a task to kernels: which values one kernel computes, over which rows and columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from stark.models.playbook.fusion.access import Access, Layout, accesses, plain
from stark.models.playbook.fusion.kernel import Kernel, Level
from stark.models.playbook.trace.program import Program
from stark.models.playbook.trace.values import POINTWISE, REDUCTIONS, Shape, Unknown, Value

ENOUGH_ROWS = 64  # to be shared out between the cores


@dataclass(frozen=True)
class Step:
    """One line of a plan of execution: a library call, or a kernel."""

    value: Value
    kernel: Kernel | None = None


def plan_steps(program: Program, layout: Layout = plain) -> list[Step]:
    """Library calls and kernels in the order of execution; ``layout`` for pictures between library calls."""
    sinks = _sinks(program)
    steps: list[Step] = []
    done: set[Value] = set()

    def visit(value: Value) -> None:
        if value in done or value.op in ("input", "weight"):
            return
        done.add(value)
        if value.op == "created":
            raise Unknown("a tensor that forward() makes")
        if value not in sinks:
            for each in value.values:
                visit(each)
            steps.append(Step(value))
            return
        for leaf in _leaves(value, sinks):
            visit(leaf)
        fits = value not in program.outputs and len(value.shape) == 4 and _fits(value, sinks, layout)
        number = sum(step.kernel is not None for step in steps)
        steps.append(Step(value, _build(value, sinks, number, layout if fits else plain)))

    for output in program.outputs:
        visit(output)
    return steps


def _sinks(program: Program) -> set[Value]:
    """The fusable values that have to be in memory: outputs, and whatever a library call or another kernel reads."""
    everything = list(_ancestors(program.outputs))
    sinks = {each for each in program.outputs if each.fusable}
    sinks |= {each for value in everything if not value.fusable for each in value.values if each.fusable}
    for value in everything:
        if value.op in POINTWISE:  # numbers for the whole that elements need
            sinks |= {each for each in value.values if each.size < value.size and _is_whole(each)}
        elif value.op in ("argmax", "var"):
            sinks |= {each for each in value.values if each.squeezed}
    while conflict := _conflict(sinks):
        sinks.add(conflict)
    return sinks


def _conflict(sinks: set[Value]) -> Value | None:
    """A reduction over other dimensions than the rest of its kernel works on."""
    for sink in sinks:
        rows = [each for each in _members(sink, sinks) if each.op in REDUCTIONS and not _is_total(each)]
        for each in rows[:-1]:
            if _matrix(each) != _matrix(rows[-1]):
                return each
        if rows and rows[-1] is not sink and not _fits(sink, sinks):
            return rows[-1]
    return None


def _fits(sink: Value, sinks: set[Value], layout: Layout = plain) -> bool:
    try:
        _build(sink, sinks, 0, layout)
    except Unknown:
        return False
    return True


def _matrix(reduction: Value) -> tuple[Shape, Shape]:
    shape = reduction.values[0].shape
    cut = len(shape) - reduction.dims
    return shape[:cut], shape[cut:]


def _is_total(value: Value) -> bool:
    """Whether a reduction is over everything. A vector is one row, unless it is made of rows itself."""
    if value.op not in ("sum", "max", "min"):
        return False
    argument = value.values[0]
    return value.dims == len(argument.shape) and (value.dims > 1 or argument.squeezed)


def _is_whole(value: Value) -> bool:
    """Whether a number for the whole is in it that its own kernel computes."""
    return _is_total(value) or (value.op in POINTWISE and any(map(_is_whole, value.values)))


def _ancestors(values: tuple[Value, ...]) -> Iterator[Value]:
    seen: set[Value] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if value not in seen:
            seen.add(value)
            pending += value.values
            yield value


def _members(sink: Value, sinks: set[Value]) -> list[Value]:
    """What the sink's kernel computes, each after its arguments."""
    found: list[Value] = []

    def visit(value: Value) -> None:
        if value in found or not value.fusable or (value in sinks and value is not sink):
            return
        for each in value.values:
            visit(each)
        found.append(value)

    visit(sink)
    return found


def _leaves(sink: Value, sinks: set[Value]) -> list[Value]:
    members = _members(sink, sinks)
    return list(dict.fromkeys(each for value in members for each in value.values if each not in members))


def _build(sink: Value, sinks: set[Value], number: int, layout: Layout = plain) -> Kernel:
    order = _members(sink, sinks)
    lead, trail, leaves = _frame(sink, order, layout)
    levels = _levels(order, leaves)
    sizes = {Level.TOTAL: 1, Level.ROW: prod(lead), Level.ELEMENT: prod(lead) * prod(trail)}
    if sink.size != sizes[levels[sink]]:
        raise Unknown(f"how {prod(lead)} rows of {prod(trail)} become a tensor of the shape {sink.shape}")
    stages: dict[Value, int] = {}
    for each in order:
        before = max((stages.get(arg, 0) for arg in each.values), default=0)
        stages[each] = before + (each.op in REDUCTIONS and not _is_total(each))
    return Kernel(f"fused_{number}", sink, leaves, tuple(order), prod(lead), prod(trail), levels, stages, layout)


def _frame(sink: Value, order: list[Value], layout: Layout) -> tuple[Shape, Shape, dict[Value, Access]]:
    """The shape cut into rows and columns: where the reductions say, otherwise into enough rows that are long."""
    if layout is not plain and any(each.op in REDUCTIONS for each in order):
        raise Unknown("a reduction over other dimensions than those that lie last in memory")
    rows = [each for each in order if each.op in REDUCTIONS and not _is_total(each)]
    if rows:
        lead, trail = _matrix(rows[-1])
        return lead, trail, accesses(order, lead, trail)
    totals = [each.values[0].shape for each in order if each.op in REDUCTIONS]
    whole = totals[-1] if totals else layout(sink)
    possible = [cut for cut in range(len(whole) + 1) if _readable(order, whole, cut, layout)]
    if not possible:
        raise Unknown(f"how tensors are broadcast to {whole}")
    enough = [cut for cut in possible if prod(whole[:cut]) >= ENOUGH_ROWS and cut < len(whole)]
    cut = enough[0] if enough else max([each for each in possible if each < len(whole)], default=possible[0])
    return whole[:cut], whole[cut:], accesses(order, whole[:cut], whole[cut:], layout)


def _readable(order: list[Value], whole: Shape, cut: int, layout: Layout) -> bool:
    try:
        accesses(order, whole[:cut], whole[cut:], layout)
    except Unknown:
        return False
    return True


def _levels(order: list[Value], leaves: dict[Value, Access]) -> dict[Value, Level]:
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
