"""Writing a candidate: what the files for all targets have in common. The file stands alone and names its moves."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stark.models.playbook.kernels import Kernel, Step, plan_steps
from stark.models.playbook.moves import Moves, header
from stark.models.playbook.reading import Program
from stark.models.playbook.values import Value

LABEL = "# Written by STARK's playbook, a library of moves: no LLM was asked."


@dataclass(frozen=True)
class Language:
    """How one target's kernels are written: the part before the class, and the lines of forward() that launch one."""

    definitions: Callable[[list[Kernel], Moves, Mapping[Value, Value], str], str]
    launch: Callable[[Kernel, Moves, list[str], str], list[str]]


def write_candidate(program: Program, moves: Moves, language: Language) -> str:
    """The complete file of a candidate with these moves."""
    steps = plan_steps(program)
    reused = _reused(steps, program) if "in-place" in moves else {}
    kernels = [step.kernel for step in steps if step.kernel is not None]
    forward = "\n".join(_forward(program, steps, moves, language, reused))
    parameters = ", ".join(["self", *(f"{each.text}: torch.Tensor" for each in program.inputs)])
    construction = re.sub(r"super\(\s*Model\s*,\s*self\s*\)", "super()", program.construction)
    return (
        f"{header(moves)}\n{LABEL}\n{language.definitions(kernels, moves, reused, program.preamble)}\n\n"
        f"class ModelNew(torch.nn.Module):\n{construction}\n\n"
        f"    def forward({parameters}):\n{textwrap.indent(forward, ' ' * 8)}\n"
    )


def _forward(
    program: Program, steps: list[Step], moves: Moves, language: Language, reused: dict[Value, Value]
) -> list[str]:
    names = {each: each.text for each in program.inputs}
    dense: set[Value] = set()
    lines: list[str] = []

    def name_of(value: Value) -> str:
        return value.text if value.op == "weight" else names[value]

    for number, step in enumerate(steps):
        names[step.value] = result = f"t{number}"
        if step.kernel is None:
            lines.append(f"{result} = {step.value.text.format(*map(name_of, step.value.values))}")
            continue
        for leaf in step.kernel.leaves:
            if leaf.op in ("input", "library") and leaf not in dense:
                dense.add(leaf)
                lines.append(f"{names[leaf]} = {names[leaf]}.contiguous()")
        lines.append(f"{result} = {_output(step.value, reused, names, name_of(next(iter(step.kernel.leaves))))}")
        lines += language.launch(step.kernel, moves, [name_of(leaf) for leaf in step.kernel.leaves], result)
        dense.add(step.value)
    returned = ", ".join(names[each] for each in program.outputs)
    return [*lines, f"return ({returned},)" if program.returns_tuple else f"return {returned}"]


def _output(sink: Value, reused: dict[Value, Value], names: dict[Value, str], like: str) -> str:
    if sink in reused:
        return names[reused[sink]]
    kind = ", dtype=torch.int64" if sink.op == "argmax" else ""
    return f"{like}.new_empty({sink.shape}{kind})"


def _reused(steps: list[Step], program: Program) -> dict[Value, Value]:
    """For each kernel that may write over a library's fresh result: that result. Nobody else may need it."""
    found: dict[Value, Value] = {}
    for step in steps:
        for leaf in step.kernel.leaves if step.kernel else ():
            readers = [each for each in steps if leaf in (each.kernel.leaves if each.kernel else each.value.values)]
            fresh = leaf.op == "library" and not leaf.text.startswith("{0}.")
            alone = len(readers) == 1 and leaf not in program.outputs
            if fresh and alone and leaf.shape == step.value.shape and step.value.op != "argmax":
                found.setdefault(step.value, leaf)
    return found


def leaf_names(kernel: Kernel) -> dict[Value, str]:
    """A short name for each leaf, as a parameter of its kernel."""
    names: dict[Value, str] = {}
    for number, leaf in enumerate(kernel.leaves):
        word = re.sub(r"\W+", "_", leaf.text.removeprefix("self.")).strip("_") if leaf.op != "library" else ""
        names[leaf] = word if word and word not in names.values() else f"in_{number}"
    return names
