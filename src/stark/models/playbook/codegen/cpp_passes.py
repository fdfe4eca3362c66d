"""The C++ of one pass over a row: the values it computes, and the reductions it updates."""

from __future__ import annotations

from collections.abc import Iterable

from stark.models.playbook.codegen.candidate import leaf_names
from stark.models.playbook.codegen.cpp_math import function_source
from stark.models.playbook.fusion.kernel import Kernel, Level
from stark.models.playbook.moves import Moves
from stark.models.playbook.trace.values import Operand, Value

START = {"sum": "0.0f", "max": "-INFINITY", "min": "INFINITY"}
CLAUSE = {"sum": "+", "max": "max", "min": "min"}
_FEW_ROWS = 16  # fewer than this many rows do not fill the cores, so the columns are shared out instead
_BLOCK = 1024  # columns that an online pass reads twice, from the first-level cache


class Passes:
    """Writes loops over the columns of a row."""

    def __init__(self, kernel: Kernel, moves: Moves) -> None:
        self._kernel, self._moves = kernel, moves
        self._leaves = leaf_names(kernel)
        self._names = {value: f"v{number}" for number, value in enumerate(kernel.order)}
        self._held: Value | None = None  # what the output row holds for later passes
        self._lines: list[str] = []

    @property
    def _total_reductions(self) -> list[Value]:
        return [each for each in self._kernel.reductions if self._kernel.levels[each] is Level.TOTAL]

    @property
    def _shares_rows(self) -> bool:
        """Whether threads share out the rows; where there are few and none is reduced, they share out each row."""
        return self._kernel.rows >= _FEW_ROWS or bool(self._kernel.reductions)

    # -- one pass

    def _reduce(self, reductions: list[Value], cut: Value | None) -> None:
        """One pass for all reductions that can be computed together; a variance may take a second."""
        if not reductions:
            return
        plain: list[tuple[str, Value, str]] = []  # operation, argument, accumulator
        for each in reductions:
            name = self._names[each]
            if each.op == "argmax":
                plain.append(("max", each.values[0], f"{name}_top"))
            elif each.op == "var":
                plain.append(("sum", each.values[0], f"{name}_sum"))
            else:
                inner = f"{name}_row" if each in self._total_reductions else name
                plain.append((each.op, each.values[0], inner))
        variances = [each for each in reductions if each.op == "var"]
        if "one-pass" in self._moves:
            self._one_pass(plain, variances, cut)
        else:
            self._pass(plain, cut)
            self._two_passes(variances)
        for each in reductions:
            if each.op == "argmax":
                self._find(each)
            elif each in self._total_reductions:
                self._add(2, self._accumulate(each, f"{self._names[each]}_row"))

    def _pass(self, plain: list[tuple[str, Value, str]], cut: Value | None) -> None:
        for op, _, name in plain:
            self._add(2, f"float {name} = {START[op]};")
        clauses = [f"reduction({CLAUSE[op]}:{name})" for op, _, name in plain]
        updates = [_update(op, name, self._operand(value)) for op, value, name in plain]
        self._loop(clauses, [value for _, value, _ in plain], *self._kept(cut), *updates)
        self._held = cut or self._held

    def _kept(self, cut: Value | None) -> list[str]:
        return [] if cut is None or cut is self._held else [f"to[i] = {self._names[cut]};"]

    def _two_passes(self, variances: list[Value]) -> None:
        for each in variances:
            name, argument = self._names[each], each.values[0]
            self._add(2, f"const float {name}_mean = {name}_sum / columns;")
            self._add(2, f"float {name} = 0.0f;")
            off = f"({self._operand(argument)} - {name}_mean)"
            self._loop([f"reduction(+:{name})"], [argument], f"{name} += {off} * {off};")
            self._add(2, f"{name} /= columns;")

    def _one_pass(self, plain: list[tuple[str, Value, str]], variances: list[Value], cut: Value | None) -> None:
        """The sums of values and of squares together; with ``shift`` around the row's first value."""
        squares: list[tuple[str, str]] = []
        for each in variances:
            name, argument = self._names[each], each.values[0]
            self._add(2, f"float {name}_squares = 0.0f, {name}_shift = 0.0f, {name}_moved = 0.0f;")
            if "shift" in self._moves:
                self._add(2, "{")
                self._add(3, "const int64_t i = 0;")
                self._elements([argument], 3)
                self._add(3, f"{name}_shift = {self._operand(argument)};")
                self._add(2, "}")
            moved = f"({self._operand(argument)} - {name}_shift)"
            squares.append((f"{name}_moved", f"{name}_moved += {moved};"))
            squares.append((f"{name}_squares", f"{name}_squares += {moved} * {moved};"))
        rest = [each for each in plain if not each[2].endswith("_sum")]
        for op, _, name in rest:
            self._add(2, f"float {name} = {START[op]};")
        clauses = [f"reduction({CLAUSE[op]}:{name})" for op, _, name in rest]
        clauses += [f"reduction(+:{name})" for name, _ in squares]
        updates = [_update(op, name, self._operand(value)) for op, value, name in rest]
        sums = [update for _, update in squares]
        self._loop(clauses, [value for _, value, _ in plain], *self._kept(cut), *updates, *sums)
        self._held = cut or self._held
        for each in variances:
            name = self._names[each]
            self._add(2, f"const float {name}_centre = {name}_moved / columns;")
            self._add(2, f"const float {name} = {name}_squares / columns - {name}_centre * {name}_centre;")

    def _online_pass(self, top: Value, total: Value) -> None:
        """The largest value and the sum of exponentials below it, block by block; the sum follows a larger maximum."""
        name, sum_name, block = self._names[top], self._names[total], f"{self._names[top]}_block"
        argument, weight, span = top.values[0], total.values[0], ("first", "end")
        self._add(2, f"float {name} = -INFINITY, {sum_name} = 0.0f;")
        self._add(2, f"for (int64_t first = 0; first < columns; first += {_BLOCK}) {{")
        self._add(3, f"const int64_t end = std::min<int64_t>(first + {_BLOCK}, columns);")
        self._add(3, f"float {block} = -INFINITY;")
        largest = _update("max", block, self._operand(argument))
        self._loop([f"reduction(max:{block})"], [argument], largest, depth=3, span=span)
        self._add(3, f"if ({block} > {name}) {{")
        self._add(4, f"{sum_name} *= {function_source('exp', [f'({name} - {block})'], self._moves)};")
        self._add(4, f"{name} = {block};")
        self._add(3, "}")
        self._add(3, f"if ({name} == -INFINITY) continue;  // nothing to add yet, and infinities have no difference")
        added = _update("sum", sum_name, self._operand(weight))
        self._loop([f"reduction(+:{sum_name})"], [weight], added, depth=3, span=span)
        self._add(2, "}")

    def _find(self, each: Value) -> None:
        """The first place of the largest value."""
        name, argument = self._names[each], each.values[0]
        self._add(2, f"int32_t {name} = INT32_MAX;")
        update = f"{name} = std::min({name}, {self._operand(argument)} == {name}_top ? int32_t(i) : INT32_MAX);"
        self._loop([f"reduction(min:{name})"], [argument], update)

    def _accumulate(self, total: Value, value: str) -> str:
        return _update(total.op, self._names[total], f"double({value})", "double")

    def _loop(
        self,
        clauses: Iterable[str],
        targets: list[Value],
        *updates: str,
        depth: int = 2,
        span: tuple[str, str] = ("0", "columns"),
    ) -> None:
        """A loop over columns that computes the targets and then the updates."""
        together = " ".join(dict.fromkeys(clauses))
        shared = "omp simd" if self._shares_rows else "omp parallel for simd schedule(static)"
        self._add(depth, f"#pragma {shared} {together}".rstrip())
        self._add(depth, f"for (int64_t i = {span[0]}; i < {span[1]}; ++i) {{")
        self._elements(targets, depth + 1)
        for line in updates:
            self._add(depth + 1, line)
        self._add(depth, "}")

    def _elements(self, targets: list[Value], depth: int) -> None:
        """Define all that the targets need; what an earlier pass kept is read back."""
        for each in self._kernel.elements(targets, self._held):
            if each is self._held:
                self._add(depth, f"const float {self._names[each]} = to[i];")
            else:
                self._define(depth, each)

    # -- one value

    def _define(self, depth: int, value: Value) -> None:
        args = [self._operand(each) for each in value.args]
        if value.op == "div" and "reciprocal" in self._moves and self._same_in_row(value.args[1]):
            text = f"{args[0]} * (1.0f / {args[1]})"  # the compiler takes the division out of the loop
        else:
            text = function_source(value.op, args, self._moves)
        self._add(depth, f"const float {self._names[value]} = {text};")

    def _same_in_row(self, operand: Operand) -> bool:
        if not isinstance(operand, Value):
            return True
        if operand in self._names:
            return self._kernel.levels[operand] is not Level.ELEMENT
        return not self._kernel.leaves[operand].column

    def _operand(self, operand: Operand) -> str:
        if not isinstance(operand, Value):
            return "INFINITY" if operand == float("inf") else f"({float(operand)!r}f)".replace("(-inff)", "(-INFINITY)")
        if operand in self._names:
            return self._names[operand]
        name, access = self._leaves[operand], self._kernel.leaves[operand]
        if not access.column:
            return f"{name}_value"
        return f"{name}_row[i]" if access.row else f"{name}[i]"

    def _add(self, depth: int, line: str) -> None:
        self._lines.append("    " * depth + line)


def _update(op: str, name: str, value: str, kind: str = "float") -> str:
    if op == "sum":
        return f"{name} += {value};"
    return f"{name} = std::{op}<{kind}>({name}, {value});"
