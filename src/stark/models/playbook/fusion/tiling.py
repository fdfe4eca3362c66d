"""Whether a task can be computed in tiles: parts of the first dimension that need nothing of each other."""

from __future__ import annotations

from collections.abc import Iterator

from stark.models.playbook.fusion.partition import Step, plan_steps
from stark.models.playbook.trace.program import Program, read_task
from stark.models.playbook.trace.values import REDUCTIONS, Unknown, Value

CACHE = 2**18  # numbers: 1 MiB, about what a core's second-level cache holds beside the weights
MOST_TILES = 64  # each costs a few calls from Python


def in_tiles(program: Program) -> Program | None:
    """The same task for one tile; None where slices depend on each other or a tile would save nothing."""
    batch = program.outputs[0].shape[0] if program.outputs[0].shape else 1
    try:
        if not _separable(program, batch):
            return None
        size = _size(program, plan_steps(program), batch)
        tile = read_task(program.source, {batch: size}) if size else None
    except Unknown:  # slices are mixed, or a shape is written out as a number
        return None
    return tile if tile and list(_outline(tile)) == list(_outline(program)) else None


def _size(program: Program, steps: list[Step], batch: int) -> int | None:
    """The largest part of the batch whose intermediate results stay in the cache from one step to the next."""
    between = {step.value for step in steps if step.value not in program.outputs}
    lies = [sum(each.size for each in between.intersection((step.value, *_read(step)))) for step in steps]
    parts = [size for size in range(1, batch) if batch % size == 0 and batch // size <= MOST_TILES]
    return max((size for size in parts if size * max(lies) <= CACHE * batch), default=None) if between else None


def _read(step: Step) -> tuple[Value, ...]:
    return tuple(step.kernel.leaves) if step.kernel else step.value.values


def _separable(program: Program, batch: int) -> bool:
    known: dict[Value, bool] = {}
    made = {each for each in program.outputs if each.op not in ("input", "weight")}
    return batch > 1 and len(made) == len(program.outputs) and all(_has_slices(each, batch, known) for each in made)


def _has_slices(value: Value, batch: int, known: dict[Value, bool]) -> bool:
    """Whether a value has a slice for each of the batch's, made of these alone. Unknown where it mixes them."""
    if value in known:
        return known[value]
    if value.op == "input":
        return value.shape[:1] == (batch,)
    sliced = [
        place for place, each in enumerate(value.args) if isinstance(each, Value) and _has_slices(each, batch, known)
    ]
    if sliced and not (value.shape[:1] == (batch,) and _keeps_apart(value, sliced)):
        raise Unknown("slices of a batch that depend on each other")
    known[value] = bool(sliced)
    return known[value]


def _keeps_apart(value: Value, sliced: list[int]) -> bool:
    if value.op == "library":
        return sliced == list(value.through)
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


def _outline(program: Program) -> Iterator[tuple[object, ...]]:
    """What is computed, shapes aside: a number that follows from the size of the batch must not change with it."""
    seen: set[Value] = set()
    pending = list(program.outputs)
    while pending:
        value = pending.pop()
        yield value.op, value.dims, [each for each in value.args if not isinstance(each, Value)]
        if value not in seen:
            seen.add(value)
            pending += value.values
