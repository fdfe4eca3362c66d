"""Generates the body of forward(): library calls and kernels in order, and the memory of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from stark.models.playbook.fusion.access import Layout, channels_last, plain
from stark.models.playbook.fusion.kernel import Kernel
from stark.models.playbook.fusion.partition import Step, plan_steps
from stark.models.playbook.moves import Moves
from stark.models.playbook.trace.program import Program
from stark.models.playbook.trace.values import Shape, Value

Launch = Callable[[Kernel, Moves, list[str], str], list[str]]


@dataclass(frozen=True)
class Body:
    """Lines of Python, the names of the outputs, and what __init__ must prepare: scratch and channels-last layers."""

    lines: list[str]
    outputs: list[str]
    scratch: list[Shape]
    layers: list[str]


class Forward:
    """Writes the steps of a program."""

    def __init__(self, program: Program, moves: Moves, launch: Launch) -> None:
        self._program, self._moves, self._launch = program, moves, launch
        self._layout: Layout = channels_last if "channels-last" in moves else plain
        self.steps = plan_steps(program, self._layout)
        self.reused = _find_reusable(self.steps, program) if "in-place" in moves else {}
        self._visible_values = set(_visible_values(program, self.reused))
        self._names = {each: each.text for each in program.inputs}
        self._dense: dict[Value, Layout] = {}
        self._lines: list[str] = []
        self._scratch: list[Shape] = []

    def body(self, given: Mapping[Value, str]) -> Body:
        """Write all steps. ``given`` names outputs whose memory exists already."""
        for number, step in enumerate(self.steps):
            self._names[step.value] = given.get(step.value, f"t{number}")
            if step.kernel is None:
                self._add_library_call(step.value, step.value in given)
            else:
                self._add_kernel(step.kernel, step.value in given)
        layers = dict.fromkeys(step.value.layer for step in self.steps if self._is_picture(step.value))
        return Body(self._lines, [self._names[each] for each in self._program.outputs], self._scratch, list(layers))

    # -- one step

    def _add_library_call(self, value: Value, given: bool) -> None:
        result, names = self._names[value], [self._name(each) for each in value.values]
        packed_call = value.packed_call if "pack" in self._moves else ""
        call = (packed_call or value.text).format(*names)
        if given:
            self._lines.append(f"{result}.copy_({call})")
        elif value.out_call and not packed_call and self._can_be_scratch(value):
            self._lines.append(f"{result} = {self._reserve_scratch(value.shape)}")
            self._lines.append(value.out_call.format(*names, out=result))
        else:
            self._lines.append(f"{result} = {call}")

    def _add_kernel(self, kernel: Kernel, given: bool) -> None:
        sink, result = kernel.sink, self._names[kernel.sink]
        for leaf in kernel.leaves:
            self._make_dense(leaf, kernel.layout)
        if not given:
            self._lines.append(f"{result} = {self._choose_memory(kernel)}")
        self._lines += self._launch(kernel, self._moves, [self._name(leaf) for leaf in kernel.leaves], result)
        self._dense[sink] = kernel.layout

    def _choose_memory(self, kernel: Kernel) -> str:
        """The memory for a kernel's result."""
        sink, shape = kernel.sink, kernel.layout(kernel.sink)
        if sink in self.reused:
            return self._names[self.reused[sink]]
        if self._can_be_scratch(sink):
            new = self._reserve_scratch(shape)
        else:
            kind = ", dtype=torch.int64" if sink.is_integer else ""
            new = f"{self._name(next(iter(kernel.leaves)))}.new_empty({shape}{kind})"
        return new if kernel.layout is plain else f"{new}.permute(0, 3, 1, 2)"

    # -- memory

    def _make_dense(self, value: Value, layout: Layout) -> None:
        """Make a value dense for a kernel, unless it is known to be."""
        if value.op == "weight" or self._dense.get(value) is layout:
            return
        self._dense[value] = layout
        asked = "" if layout is plain or len(value.shape) < 4 else "memory_format=torch.channels_last"
        self._lines.append(f"{self._names[value]} = {self._names[value]}.contiguous({asked})")

    def _reserve_scratch(self, shape: Shape) -> str:
        self._scratch.append(shape)
        return f"self.scratch_{len(self._scratch) - 1}"

    def _can_be_scratch(self, value: Value) -> bool:
        """True if no output shares the memory, so that the next call may overwrite it."""
        return "scratch" in self._moves and value not in self._visible_values and not value.is_integer

    def _is_picture(self, value: Value) -> bool:
        return bool(value.layer) and self._layout is not plain

    def _name(self, value: Value) -> str:
        return value.text if value.op == "weight" else self._names[value]


def _find_reusable(steps: list[Step], program: Program) -> dict[Value, Value]:
    """Map each kernel's output to the library result it may overwrite, one with no other reader."""
    found: dict[Value, Value] = {}
    for step in steps:
        for leaf in step.kernel.leaves if step.kernel else ():
            readers = [each for each in steps if leaf in (each.kernel.leaves if each.kernel else each.value.values)]
            alone = len(readers) == 1 and leaf not in program.outputs
            fresh = leaf.op == "library" and not leaf.is_view
            if fresh and alone and leaf.shape == step.value.shape and not step.value.is_integer:
                found.setdefault(step.value, leaf)
    return found


def _visible_values(program: Program, reused: Mapping[Value, Value]) -> Iterator[Value]:
    """The outputs and all values that share memory with one."""
    pending = list(program.outputs)
    while pending:
        value = pending.pop()
        yield value
        pending += value.values if value.is_view else ()
        pending += [reused[value]] if value in reused else ()
