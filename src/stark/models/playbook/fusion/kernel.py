"""One fused kernel: its values for each row and element, and its passes.

A kernel works on a matrix. Its columns are the reduced dimensions (or the last one), its rows all others. A value
belongs to the whole matrix (``TOTAL``), to a row, or to an element.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass

from stark.models.playbook.fusion.access import Access, Layout, plain
from stark.models.playbook.trace.values import REDUCTIONS, TRANSCENDENTAL, Value


class Level(enum.IntEnum):
    """The scope of a value."""

    TOTAL = 0
    ROW = 1
    ELEMENT = 2


@dataclass(frozen=True)
class Kernel:
    """One fused kernel: it reads the leaves and writes the sink."""

    name: str
    sink: Value
    leaves: dict[Value, Access]
    order: tuple[Value, ...]
    rows: int
    columns: int
    levels: dict[Value, Level]
    stages: dict[Value, int]  # the pass over a row after which all reductions of a value are known
    layout: Layout = plain  # of all inputs and the output

    @property
    def reductions(self) -> list[Value]:
        return [each for each in self.order if each.op in REDUCTIONS]

    @property
    def passes(self) -> list[list[Value]]:
        """The reductions of each pass over a row."""
        row = [each for each in self.reductions if self.levels[each] is Level.ROW]
        last = max(self.stages.values(), default=0)
        return [[each for each in row if self.stages[each] == stage] for stage in range(1, last + 1)]

    def has(self, *ops: str) -> bool:
        """True if the kernel computes any of these operations."""
        return any(each.op in ops for each in self.order)

    @property
    def targets(self) -> list[list[Value]]:
        """The values that each pass over a row computes."""
        found = [[each.values[0] for each in together] for together in self.passes]
        return [*found, [self.sink]] if self.levels[self.sink] is Level.ELEMENT else found

    def elements(self, targets: list[Value], held: Value | None = None) -> list[Value]:
        """The elements that the targets need, in order; ``held`` is available already."""
        needed: set[Value] = set()
        pending = list(targets)
        while pending:
            value = pending.pop()
            if value not in needed and self.levels.get(value) is Level.ELEMENT:
                needed.add(value)
                pending += () if value is held else value.values
        return [each for each in self.order if each in needed]

    @property
    def cuts(self) -> list[Value | None]:
        """For each pass, the expensive element to keep in the output row for the next pass."""
        targets = self.targets
        if self.levels[self.sink] is not Level.ELEMENT:  # there is no output row
            return [None] * len(targets)
        found: list[Value | None] = []
        held: Value | None = None
        for now, then in itertools.pairwise(targets):
            common = [each for each in self.elements(now, held) if each in self.elements(then)]
            dear = [each for each in common if any(part.op in TRANSCENDENTAL for part in self.elements([each], held))]
            held = dear[-1] if dear else held
            found.append(dear[-1] if dear else None)
        return [*found, None]

    @property
    def online(self) -> dict[Value, Value]:
        """Row maxima with the sums of exponentials that the same pass can compute."""
        found: dict[Value, Value] = {}
        for first, second in itertools.pairwise(self.passes):
            match first, second:
                case [Value(op="max") as top], [Value(op="sum", args=(Value(op="exp", args=(shifted,)),)) as total]:
                    if isinstance(shifted, Value) and shifted.op == "sub" and shifted.args == (top.args[0], top):
                        found[top] = total
        return found
