"""Generates Triton: one program per row or block of short rows. A row stays in registers between passes."""

from __future__ import annotations

from collections.abc import Mapping

from stark.models.playbook.codegen.candidate import Language, leaf_names
from stark.models.playbook.fusion.kernel import Kernel, Level
from stark.models.playbook.moves import Moves
from stark.models.playbook.trace.values import REDUCTIONS, Operand, Unsupported, Value

# Series near zero, where a difference to 1 loses all its digits.
_TANH = (
    "tl.where(tl.abs({0}) < 0.35, {0} + {0} * {0} * {0} * (-0.333333333 + {0} * {0} * (0.133333333"
    " + {0} * {0} * (-5.39682540e-2 + {0} * {0} * 2.18694885e-2))), 2.0 * tl.sigmoid(2.0 * {0}) - 1.0)"
)

_EXPRESSIONS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "alias": "{0}",
    "max2": "tl.maximum({0}, {1})",
    "min2": "tl.minimum({0}, {1})",
    "abs": "tl.abs({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "erf": "tl.erf({0})",
    "tanh": _TANH,
    "sigmoid": "tl.sigmoid({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
}
_NEUTRAL = {"sum": "0.0", "max": 'float("-inf")', "min": 'float("inf")'}
_MAX_BLOCK = 1024  # of a row without a reduction; a reduced row must fit into one block
# A program keeps the reduced row in registers, of which a multiprocessor has 2**16. Twice as many elements spill half
# of them, more spill nearly all, and Triton refuses a block of more than 2**20.
_MAX_REDUCED_ELEMENTS = 2**17
_PROGRAM_ELEMENTS = 2048  # per program with several short rows


def definitions(kernels: list[Kernel], moves: Moves, reused: Mapping[Value, Value], preamble: str) -> str:
    """Everything before the class."""
    parts = [text for kernel in kernels for text in _Function(kernel, moves).texts()]
    imports = f"\nimport torch\nimport triton\nimport triton.language as tl\n\n{preamble}\n"
    return "\n\n".join([imports, *parts])


def launch(kernel: Kernel, moves: Moves, leaves: list[str], result: str) -> list[str]:
    """The lines of forward() that launch a kernel."""
    block, per = _block(kernel), _rows_per_program(kernel, moves)
    programs, along = -(-kernel.rows // per), -(-kernel.columns // block)
    warps = 8 if "warps" in moves else 4
    sizes = [str(kernel.rows), str(kernel.columns), f"per={per}", f"block={block}", f"num_warps={warps}"]
    if kernel.levels[kernel.sink] is not Level.TOTAL:
        return _call(f"{kernel.name}[({programs}, {along})]", [*leaves, result, *sizes])
    partial = f"{result}_parts"
    many = [each for each in kernel.reductions if kernel.levels[each] is Level.TOTAL]
    return [
        f"{partial} = torch.empty({len(many)}, {programs}, dtype=torch.float32, device={result}.device)",
        *_call(f"{kernel.name}[({programs}, 1)]", [*leaves, partial, *sizes]),
        *_call(f"{kernel.name}_finish[(1,)]", [partial, result, str(programs), f"block={_reduction_block(programs)}"]),
    ]


TRITON = Language(definitions, launch)


def _call(name: str, arguments: list[str]) -> list[str]:
    return [f"{name}(", *(f"    {each}," for each in arguments), ")"]


def _power_of_two(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


def _reduction_block(size: int) -> int:
    """The block of a program that reduces this many elements."""
    if size > _MAX_REDUCED_ELEMENTS:
        raise Unsupported(f"how one Triton program reduces {size:,} elements (it does up to {_MAX_REDUCED_ELEMENTS:,})")
    return _power_of_two(size)


def _block(kernel: Kernel) -> int:
    return _reduction_block(kernel.columns) if kernel.reductions else min(_power_of_two(kernel.columns), _MAX_BLOCK)


def _rows_per_program(kernel: Kernel, moves: Moves) -> int:
    return max(1, _PROGRAM_ELEMENTS // _block(kernel)) if "blocks" in moves else 1


class _Function:
    """The source of one kernel, and of a second one that combines its programs' partial results."""

    def __init__(self, kernel: Kernel, moves: Moves) -> None:
        self._kernel, self._moves = kernel, moves
        self._leaves = leaf_names(kernel)
        self._names = {value: f"v{number}" for number, value in enumerate(kernel.order)}
        self._totals = [each for each in kernel.reductions if kernel.levels[each] is Level.TOTAL]
        self._lines: list[str] = []

    def texts(self) -> list[str]:
        body = self._body()
        constant = ": tl.constexpr" if "specialise" in self._moves else ""
        pointers = [f"{name}_ptr" for name in self._leaves.values()]
        parameters = [*pointers, "out_ptr", f"rows{constant}", f"columns{constant}"]
        head = f"@triton.jit\ndef {self._kernel.name}({', '.join(parameters)}, per: tl.constexpr, block: tl.constexpr):"
        first = "\n".join([head, *(f"    {line}" for line in body)])
        return [first, self._finish()] if self._kernel.levels[self._kernel.sink] is Level.TOTAL else [first]

    def _body(self) -> list[str]:
        kernel = self._kernel
        self._lines = [
            "row = (tl.program_id(0).to(tl.int64) * per + tl.arange(0, per))[:, None]",
            "i = (tl.program_id(1) * block + tl.arange(0, block))[None, :]",
            "inside = row < rows",
            "mask = inside & (i < columns)",
        ]
        for leaf, name in self._leaves.items():
            access = kernel.leaves[leaf]
            row = access.row.replace(" / ", " // ")
            place = f"{row} * columns + i" if row and access.column else "i" if access.column else row or "0 * row"
            guard = "mask" if access.column else "inside"
            self._lines.append(f"{name} = tl.load({name}_ptr + {place}, mask={guard}, other=0.0).to(tl.float32)")
        for value in kernel.order:
            if kernel.levels[value] is not Level.TOTAL:
                self._lines.append(f"{self._names[value]} = {self._expression(value)}")
        self._add_stores()
        return self._lines

    def _add_stores(self) -> None:
        kernel, name = self._kernel, self._names[self._kernel.sink]
        level = kernel.levels[kernel.sink]
        if level is Level.ELEMENT:
            self._lines.append(f"tl.store(out_ptr + row * columns + i, {name}, mask=mask)")
        elif level is Level.ROW:
            self._lines.append(f"tl.store(out_ptr + row, {name}, mask=inside)")
        for number, total in enumerate(self._totals):
            argument = total.values[0]
            guard = "inside" if kernel.levels.get(argument) is Level.ROW else "mask"
            text = f"tl.where({guard}, {self._operand(argument)}, {_NEUTRAL[total.op]})"
            both = f"tl.{total.op}(tl.{total.op}({text}, axis=1), axis=0)"
            place = f"{number} * tl.num_programs(0) + tl.program_id(0)"
            self._lines.append(f"tl.store(out_ptr + {place}, {both})")

    def _finish(self) -> str:
        """Combine the programs' partial results, in one program."""
        lines = ["i = tl.arange(0, block)"]
        for number, total in enumerate(self._totals):
            load = f"tl.load(parts_ptr + {number} * count + i, mask=i < count, other={_NEUTRAL[total.op]})"
            lines.append(f"{self._names[total]} = tl.{total.op}({load}, axis=0)")
        for value in self._kernel.order:
            if self._kernel.levels[value] is Level.TOTAL and value.op not in REDUCTIONS:
                lines.append(f"{self._names[value]} = {self._expression(value)}")
        lines.append(f"tl.store(out_ptr, {self._names[self._kernel.sink]})")
        head = f"@triton.jit\ndef {self._kernel.name}_finish(parts_ptr, out_ptr, count, block: tl.constexpr):"
        return "\n".join([head, *(f"    {line}" for line in lines)])

    def _expression(self, value: Value) -> str:
        args = [self._operand(each) for each in value.args]
        if value.op == "var":
            mean = f"tl.sum(tl.where(mask, {args[0]}, 0.0), axis=1)[:, None] / columns"
            self._lines.append(f"{self._names[value]}_off = tl.where(mask, {args[0]} - {mean}, 0.0)")
            off = f"{self._names[value]}_off"
            return f"tl.sum({off} * {off}, axis=1)[:, None] / columns"
        if value.op == "argmax":
            return f"tl.argmax(tl.where(mask, {args[0]}, {_NEUTRAL['max']}), axis=1)[:, None]"
        if value.op in REDUCTIONS:
            return f"tl.{value.op}(tl.where(mask, {args[0]}, {_NEUTRAL[value.op]}), axis=1)[:, None]"
        if value.op == "div" and "reciprocal" in self._moves and self._same_in_row(value.args[1]):
            return f"{args[0]} * (1.0 / {args[1]})"
        return _EXPRESSIONS[value.op].format(*args)

    def _same_in_row(self, operand: Operand) -> bool:
        return not isinstance(operand, Value) or self._kernel.levels.get(operand) in (Level.ROW, Level.TOTAL)

    def _operand(self, operand: Operand) -> str:
        if not isinstance(operand, Value):
            return f"({float(operand)!r})" if abs(operand) != float("inf") else f'float("{operand}")'
        return self._names[operand] if operand in self._names else self._leaves[operand]
