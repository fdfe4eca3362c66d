"""Writing a candidate: what the files for all targets have in common. The file stands alone and names its moves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stark.models.playbook.forward import Body, Forward
from stark.models.playbook.kernel import Kernel
from stark.models.playbook.moves import Moves, header
from stark.models.playbook.reading import Program
from stark.models.playbook.tiling import in_tiles
from stark.models.playbook.values import Value

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
    given = {each: f"out_{number}" for number, each in enumerate(tile.outputs)} if tile else {}
    body = forward.body(given)
    kernels = [step.kernel for step in forward.steps if step.kernel is not None]
    parameters = ", ".join(["self", *(f"{each.text}: torch.Tensor" for each in program.inputs)])
    returned = ", ".join(f"out_{number}" for number in range(len(body.outputs))) if tile else ", ".join(body.outputs)
    lines = [*(_over_tiles(program, tile) if tile else body.lines)]
    lines.append(f"return ({returned},)" if program.returns_tuple else f"return {returned}")
    # what is written into memory that is there already has no gradient, nor has any kernel here
    decorators = ["    @torch.no_grad()"] if body.scratch else []
    methods = [*decorators, f"    def forward({parameters}):", *(f"        {line}" for line in lines)]
    if tile:
        outputs = [f"{name}: torch.Tensor" for name in given.values()]
        methods += ["", f"    def tile({', '.join([parameters, *outputs])}):"]
        methods += [f"        {line}" for line in body.lines]
    definitions = language.definitions(kernels, moves, forward.reused, program.preamble)
    return (
        f"{header(moves)}\n{LABEL}\n{definitions}{_PACKED if 'pack' in moves else ''}\n\n"
        f"class ModelNew(torch.nn.Module):\n{_construction(program, body)}\n\n" + "\n".join(methods) + "\n"
    )


def _construction(program: Program, body: Body) -> str:
    """The task's own __init__, then memory that is made once and layers whose weights are laid out anew."""
    text = re.sub(r"super\(\s*Model\s*,\s*self\s*\)", "super()", program.construction)
    more = [f"{layer}.to(memory_format=torch.channels_last)" for layer in body.layers]
    for number, shape in enumerate(body.scratch):
        more.append(f'self.register_buffer("scratch_{number}", torch.empty({shape}), persistent=False)')
    return "\n".join([text, *(f"        {line}" for line in more)])


def _over_tiles(program: Program, tile: Program) -> list[str]:
    """A loop over parts of the first dimension."""
    batch, size = program.outputs[0].shape[0], tile.outputs[0].shape[0]
    lines = []
    for number, each in enumerate(program.outputs):
        kind = ", dtype=torch.int64" if each.integer else ""
        lines.append(f"out_{number} = {program.inputs[0].text}.new_empty({each.shape}{kind})")
    names = [(each.text, each.shape[:1] == (batch,)) for each in program.inputs]
    names += [(f"out_{number}", True) for number in range(len(program.outputs))]
    parts = [f"{name}[start : start + {size}]" if cut else name for name, cut in names]
    lines.append(f"for start in range(0, {batch}, {size}):")
    return [*lines, "    self.tile(", *(f"        {part}," for part in parts), "    )"]


def leaf_names(kernel: Kernel) -> dict[Value, str]:
    """A short name for each leaf, as a parameter of its kernel."""
    names: dict[Value, str] = {}
    for number, leaf in enumerate(kernel.leaves):
        word = re.sub(r"\W+", "_", leaf.text.removeprefix("self.")).strip("_") if leaf.op != "library" else ""
        names[leaf] = word if word and word not in names.values() else f"in_{number}"
    return names
