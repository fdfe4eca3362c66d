"""Writing a candidate: what the files for all targets have in common. The file stands alone and names its moves."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from stark.models.playbook.codegen.forward import Body, Forward
from stark.models.playbook.fusion.kernel import Kernel
from stark.models.playbook.fusion.tiling import in_tiles
from stark.models.playbook.moves import Moves, header
from stark.models.playbook.trace.program import Program
from stark.models.playbook.trace.values import Value

LABEL = "# Written by STARK's playbook, a library of moves: no LLM was asked."

_PACKED = '''

def packed(layer: torch.nn.Linear, rows: int) -> torch.Tensor:
    """The weight as the library reads it fastest, made anew whenever the weight has changed."""
    state = (layer.weight.data_ptr(), layer.weight._version)
    if getattr(layer, "packed_from", None) != state:
        layer.packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
        layer.packed_from = state
    return layer.packed
'''


@dataclass(frozen=True)
class Language:
    """How one target's kernels are written: the part before the class, and the lines of forward() that launch one."""

    definitions: Callable[[list[Kernel], Moves, Mapping[Value, Value], str], str]
    launch: Callable[[Kernel, Moves, list[str], str], list[str]]


def write_candidate(program: Program, moves: Moves, language: Language) -> str:
    """The complete file of a candidate with these moves."""
    tile = in_tiles(program) if "tile" in moves else None
    forward = Forward(tile or program, moves, language.launch)
    body = forward.body(dict(zip(tile.outputs, _outputs(tile), strict=True)) if tile else {})
    kernels = [step.kernel for step in forward.steps if step.kernel is not None]
    definitions = language.definitions(kernels, moves, forward.reused, program.preamble)
    methods = [_construction(program, body), *_methods(program, tile, body)]
    return (
        f"{header(moves)}\n{LABEL}\n{definitions}{_PACKED if 'pack' in moves else ''}\n\n"
        "class ModelNew(torch.nn.Module):\n" + "\n\n".join(textwrap.indent(each, "    ") for each in methods) + "\n"
    )


def _methods(program: Program, tile: Program | None, body: Body) -> Iterator[str]:
    """forward(), and what it does for each tile where there are tiles."""
    given = _outputs(tile) if tile else []
    returned = ", ".join(given or body.outputs)
    lines = _over_tiles(program, tile) if tile else body.lines
    last = f"return ({returned},)" if program.returns_tuple else f"return {returned}"
    inputs = [each.text for each in program.inputs]
    # what is written into memory that is there already has no gradient, nor has any kernel here
    yield ("@torch.no_grad()\n" if body.scratch else "") + _method("forward", inputs, [*_checks(program), *lines, last])
    if tile:
        yield _method("forward_tile", [*inputs, *given], body.lines)


def _checks(program: Program) -> Iterator[str]:
    """A kernel reads as much memory as it was written for, whatever it is given."""
    for name, shape in ((each.text, each.shape) for each in program.inputs):
        yield f"if {name}.shape != {shape}:"
        yield f'    raise ValueError(f"written for {name} of shape {shape}, not {{tuple({name}.shape)}}")'


def _method(name: str, tensors: list[str], lines: list[str]) -> str:
    parameters = ", ".join(["self", *(f"{each}: torch.Tensor" for each in tensors)])
    return "\n".join([f"def {name}({parameters}):", *(f"    {line}" for line in lines)])


def _outputs(tile: Program) -> list[str]:
    return [f"out_{number}" for number in range(len(tile.outputs))]


def _construction(program: Program, body: Body) -> str:
    """The task's own __init__, then memory that is made once and layers whose weights are laid out anew."""
    text = re.sub(r"super\(\s*Model\s*,\s*self\s*\)", "super()", program.construction)
    more = [f"{layer}.to(memory_format=torch.channels_last)" for layer in body.layers]
    for number, shape in enumerate(body.scratch):
        more.append(f'self.register_buffer("scratch_{number}", torch.empty({shape}), persistent=False)')
    return "\n".join([text, *(f"    {line}" for line in more)])


def _over_tiles(program: Program, tile: Program) -> list[str]:
    """A loop over parts of the first dimension."""
    batch, size = program.outputs[0].shape[0], tile.outputs[0].shape[0]
    lines = []
    for name, each in zip(_outputs(tile), program.outputs, strict=True):
        kind = ", dtype=torch.int64" if each.integer else ""
        lines.append(f"{name} = {program.inputs[0].text}.new_empty({each.shape}{kind})")
    names = [(each.text, each.shape[:1] == (batch,)) for each in program.inputs]
    names += [(name, True) for name in _outputs(tile)]
    parts = [f"{name}[start : start + {size}]" if cut else name for name, cut in names]
    lines.append(f"for start in range(0, {batch}, {size}):")
    return [*lines, "    self.forward_tile(", *(f"        {part}," for part in parts), "    )"]


def leaf_names(kernel: Kernel) -> dict[Value, str]:
    """A short name for each leaf, as a parameter of its kernel."""
    names: dict[Value, str] = {}
    for number, leaf in enumerate(kernel.leaves):
        word = re.sub(r"\W+", "_", leaf.text.removeprefix("self.")).strip("_") if leaf.op != "library" else ""
        names[leaf] = word if word and word not in names.values() else f"in_{number}"
    return names
