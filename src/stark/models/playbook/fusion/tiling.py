"""Splits a task into tiles: independent parts of the first dimension."""

from __future__ import annotations

from collections.abc import Iterator

from stark.models.playbook.fusion.partition import Step, plan_steps
from stark.models.playbook.trace.program import Program, read_task
from stark.models.playbook.trace.values import REDUCTIONS, Unsupported, Value

CACHE_ELEMENTS = 2**18  # 1 MiB, about what a core's second-level cache holds in addition to the weights
MAX_TILES = 64  # each costs a few calls from Python


def split_into_tiles(program: Program) -> Program | None:
    """The task for one tile; None if slices depend on each other or tiles save nothing."""
    batch = program.outputs[0].shape[0] if program.outputs[0].shape else 1
    try:
        if not _is_separable(program, batch):
            return None
        size = _choose_size(program, plan_steps(program), batch)
        tile = read_task(program.source, {batch: size}) if size else None
    except Unsupported:  # slices are mixed, or the source holds a shape as a number
        return None
    return tile if tile and list(_list_operations(tile)) == list(_list_operations(program)) else None


def _choose_size(program: Program, steps: list[Step], batch: int) -> int | None:
    """The largest part of the batch whose intermediate results fit the cache."""
    between = {step.value for step in steps if step.value not in program.outputs}
    live_sizes = [sum(each.size for each in between.intersection((step.value, *_read_values(step)))) for step in steps]
    parts = [size for size in range(1, batch) if batch % size == 0 and batch // size <= MAX_TILES]
    return (
        max((size for size in parts if size * max(live_sizes) <= CACHE_ELEMENTS * batch), default=None)
        if between
        else None
    )


def _read_values(step: Step) -> tuple[Value, ...]:
    return tuple(step.kernel.leaves) if step.kernel else step.value.values


def _is_separable(program: Program, batch: int) -> bool:
    known: dict[Value, bool] = {}
    made = {each for each in program.outputs if each.op not in ("input", "weight")}
    return batch > 1 and len(made) == len(program.outputs) and all(_has_slices(each, batch, known) for each in made)


def _has_slices(value: Value, batch: int, known: dict[Value, bool]) -> bool:
    """True if each slice of a value depends on one slice of the batch. Raise Unsupported if slices are mixed."""
    if value in known:
        return known[value]
    if value.op == "input":
        return value.shape[:1] == (batch,)
    sliced = [
        place for place, each in enumerate(value.args) if isinstance(each, Value) and _has_slices(each, batch, known)
    ]
    if sliced and not (value.shape[:1] == (batch,) and _is_slicewise(value, sliced)):
        raise Unsupported("slices of a batch that depend on each other")
    known[value] = bool(sliced)
    return known[value]


def _is_slicewise(value: Value, sliced: list[int]) -> bool:
    if value.op == "library":
        return sliced == list(value.batched_args)
    if value.op in REDUCTIONS:
        return value.dims < len(value.values[0].shape)
    if value.op == "alias":
        return value.values[0].shape[:1] == value.shape[:1]
    aligned = [isinstance(each, Value) and len(each.shape) == len(value.shape) for each in value.args]
    return all(
        aligned[place] if place in sliced else not (aligned[place] and each.shape[0] > 1)
        for place, each in enumerate(value.args)
        if isinstance(each, Value)
    )


def _list_operations(program: Program) -> Iterator[tuple[object, ...]]:
    """The operations without shapes. Numbers are included: they must not depend on the size of the batch."""
    seen: set[Value] = set()
    pending = list(program.outputs)
    while pending:
        value = pending.pop()
        yield value.op, value.dims, [each for each in value.args if not isinstance(each, Value)]
        if value not in seen:
            seen.add(value)
            pending += value.values
