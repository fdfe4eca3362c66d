"""Writes the file of a candidate: the parts that all targets share. The file is self-contained and names its moves."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from stark.models.playbook.codegen.forward import Body, Forward
from stark.models.playbook.fusion.kernel import Kernel
from stark.models.playbook.fusion.tiling import split_into_tiles
from stark.models.playbook.moves import Moves, format_header
from stark.models.playbook.trace.program import Program
from stark.models.playbook.trace.values import Value

ORIGIN_COMMENT = "# Written by STARK's playbook, a library of moves: no LLM was asked."

_PACKED_FUNCTION = '''

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
    """The code generator of a target: the part before the class, and the lines that launch a kernel."""

    definitions: Callable[[list[Kernel], Moves, Mapping[Value, Value], str], str]
    launch: Callable[[Kernel, Moves, list[str], str], list[str]]


def write_candidate(program: Program, moves: Moves, language: Language) -> str:
    """Write the complete file of a candidate with these moves."""
    tile = split_into_tiles(program) if "tile" in moves else None
    forward = Forward(tile or program, moves, language.launch)
    body = forward.body(dict(zip(tile.outputs, _output_names(tile), strict=True)) if tile else {})
    kernels = [step.kernel for step in forward.steps if step.kernel is not None]
    definitions = language.definitions(kernels, moves, forward.reused, program.preamble)
    methods = [_construction(program, body), *_methods(program, tile, body)]
    return (
        f"{format_header(moves)}\n{ORIGIN_COMMENT}\n{definitions}{_PACKED_FUNCTION if 'pack' in moves else ''}\n\n"
        "class ModelNew(torch.nn.Module):\n" + "\n\n".join(textwrap.indent(each, "    ") for each in methods) + "\n"
    )


def _methods(program: Program, tile: Program | None, body: Body) -> Iterator[str]:
    """forward(), and forward_tile() if there are tiles."""
    given = _output_names(tile) if tile else []
    returned = ", ".join(given or body.outputs)
    lines = _tile_loop(program, tile) if tile else body.lines
    last = f"return ({returned},)" if program.returns_tuple else f"return {returned}"
    inputs = [each.text for each in program.inputs]
    # Writing into existing memory has no gradient; nor have the kernels.
    decorator = "@torch.no_grad()\n" if body.scratch else ""
    yield decorator + _method("forward", inputs, [*_shape_checks(program), *lines, last])
    if tile:
        yield _method("forward_tile", [*inputs, *given], body.lines)


def _shape_checks(program: Program) -> Iterator[str]:
    """Refuse inputs of another shape: a kernel reads as much memory as it was written for."""
    for name, shape in ((each.text, each.shape) for each in program.inputs):
        yield f"if {name}.shape != {shape}:"
        yield f'    raise ValueError(f"written for {name} of shape {shape}, not {{tuple({name}.shape)}}")'


def _method(name: str, tensors: list[str], lines: list[str]) -> str:
    parameters = ", ".join(["self", *(f"{each}: torch.Tensor" for each in tensors)])
    return "\n".join([f"def {name}({parameters}):", *(f"    {line}" for line in lines)])


def _output_names(tile: Program) -> list[str]:
    return [f"out_{number}" for number in range(len(tile.outputs))]


def _construction(program: Program, body: Body) -> str:
    """The task's own __init__, then channels-last layers and scratch memory."""
    text = re.sub(r"super\(\s*Model\s*,\s*self\s*\)", "super()", program.construction)
    more = [f"{layer}.to(memory_format=torch.channels_last)" for layer in body.layers]
    for number, shape in enumerate(body.scratch):
        more.append(f'self.register_buffer("scratch_{number}", torch.empty({shape}), persistent=False)')
    return "\n".join([text, *(f"    {line}" for line in more)])


def _tile_loop(program: Program, tile: Program) -> list[str]:
    """A loop over parts of the first dimension."""
    batch, size = program.outputs[0].shape[0], tile.outputs[0].shape[0]
    lines = []
    for name, each in zip(_output_names(tile), program.outputs, strict=True):
        kind = ", dtype=torch.int64" if each.is_integer else ""
        lines.append(f"{name} = {program.inputs[0].text}.new_empty({each.shape}{kind})")
    names = [(each.text, each.shape[:1] == (batch,)) for each in program.inputs]
    names += [(name, True) for name in _output_names(tile)]
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
