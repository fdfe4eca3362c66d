"""Generates the C++ of one pass over a row: the values it computes and the reductions it updates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stark.models.playbook.codegen.candidate import leaf_names
from stark.models.playbook.codegen.cpp_math import function_source
from stark.models.playbook.fusion.kernel import Kernel, Level
from stark.models.playbook.moves import Moves
from stark.models.playbook.trace.values import Operand, Value

START = {"sum": "0.0f", "max": "-INFINITY", "min": "INFINITY"}
CLAUSE = {"sum": "+", "max": "max", "min": "min"}
_MIN_SHARED_ROWS = 16  # with fewer rows, threads share the columns instead
_ONLINE_BLOCK = 1024  # columns that an online pass reads twice, from the first-level cache


class _Accumulator(NamedTuple):
    """A variable that a pass reduces into."""

    op: str
    argument: Value
    name: str
    of_variance: bool = False


class Passes:
    """Writes loops over the columns of a row."""

    def __init__(self, kernel: Kernel, moves: Moves) -> None:
        self._kernel, self._moves, self._number = kernel, moves, "float"
        self._leaves = leaf_names(kernel)
        self._names = {value: f"v{number}" for number, value in enumerate(kernel.order)}
        self._held: Value | None = None  # the value that the output row holds for later passes
        self._lines: list[str] = []

    @property
    def _total_reductions(self) -> list[Value]:
        return [each for each in self._kernel.reductions if self._kernel.levels[each] is Level.TOTAL]

    @property
    def _shares_rows(self) -> bool:
        """True if threads share the rows; with few rows and no reduction they share each row."""
        return self._kernel.rows >= _MIN_SHARED_ROWS or bool(self._kernel.reductions)

    # -- one pass

    def _reduce(self, reductions: list[Value], cut: Value | None) -> None:
        """Write one pass for reductions that belong together; a variance may take a second."""
        if not reductions:
            return
        accumulators = [self._accumulator(each) for each in reductions]
        variances = [each for each in reductions if each.op == "var"]
        if "one-pass" in self._moves:
            self._one_pass(accumulators, variances, cut)
        else:
            self._pass(accumulators, cut)
            self._two_passes(variances)
        for each in reductions:
            if each.op == "argmax":
                self._add_argmax(each)
            elif each in self._total_reductions:
                self._add_line(2, self._accumulate(each, f"{self._names[each]}_row"))

    def _accumulator(self, reduction: Value) -> _Accumulator:
        name, argument = self._names[reduction], reduction.values[0]
        if reduction.op == "argmax":
            return _Accumulator("max", argument, f"{name}_top")
        if reduction.op == "var":
            return _Accumulator("sum", argument, f"{name}_sum", of_variance=True)
        inner = f"{name}_row" if reduction in self._total_reductions else name
        return _Accumulator(reduction.op, argument, inner)

    def _pass(self, accumulators: list[_Accumulator], cut: Value | None) -> None:
        for each in accumulators:
            self._add_line(2, f"float {each.name} = {START[each.op]};")
        clauses = [f"reduction({CLAUSE[each.op]}:{each.name})" for each in accumulators]
        updates = [_update(each.op, each.name, self._operand(each.argument)) for each in accumulators]
        self._add_loop(clauses, [each.argument for each in accumulators], *self._store_line(cut), *updates)
        self._held = cut or self._held

    def _store_line(self, cut: Value | None) -> list[str]:
        return [] if cut is None or cut is self._held else [f"to[i] = {self._names[cut]};"]

    def _two_passes(self, variances: list[Value]) -> None:
        for each in variances:
            name, argument = self._names[each], each.values[0]
            self._add_line(2, f"const float {name}_mean = {name}_sum / columns;")
            self._add_line(2, f"float {name} = 0.0f;")
            off = f"({self._operand(argument)} - {name}_mean)"
            self._add_loop([f"reduction(+:{name})"], [argument], f"{name} += {off} * {off};")
            self._add_line(2, f"{name} /= columns;")

    def _one_pass(self, accumulators: list[_Accumulator], variances: list[Value], cut: Value | None) -> None:
        """Write one pass for sums and squares together; ``shift`` takes the row's first value away."""
        squares: list[tuple[str, str]] = []
        for each in variances:
            name, argument = self._names[each], each.values[0]
            self._add_line(2, f"float {name}_squares = 0.0f, {name}_shift = 0.0f, {name}_moved = 0.0f;")
            if "shift" in self._moves:
                self._add_line(2, "{")
                self._add_line(3, "const int64_t i = 0;")
                self._add_elements([argument], 3)
                self._add_line(3, f"{name}_shift = {self._operand(argument)};")
                self._add_line(2, "}")
            moved = f"({self._operand(argument)} - {name}_shift)"
            squares.append((f"{name}_moved", f"{name}_moved += {moved};"))
            squares.append((f"{name}_squares", f"{name}_squares += {moved} * {moved};"))
        rest = [each for each in accumulators if not each.of_variance]
        for one in rest:
            self._add_line(2, f"float {one.name} = {START[one.op]};")
        clauses = [f"reduction({CLAUSE[each.op]}:{each.name})" for each in rest]
        clauses += [f"reduction(+:{name})" for name, _ in squares]
        updates = [_update(each.op, each.name, self._operand(each.argument)) for each in rest]
        sums = [update for _, update in squares]
        self._add_loop(clauses, [each.argument for each in accumulators], *self._store_line(cut), *updates, *sums)
        self._held = cut or self._held
        for each in variances:
            name = self._names[each]
            self._add_line(2, f"const float {name}_centre = {name}_moved / columns;")
            self._add_line(2, f"const float {name} = {name}_squares / columns - {name}_centre * {name}_centre;")

    def _online_pass(self, top: Value, total: Value) -> None:
        """Write one pass for the maximum and the sum of exponentials, block by block; a larger maximum rescales."""
        name, sum_name, block = self._names[top], self._names[total], f"{self._names[top]}_block"
        argument, weight, span = top.values[0], total.values[0], ("first", "end")
        self._add_line(2, f"float {name} = -INFINITY, {sum_name} = 0.0f;")
        self._add_line(2, f"for (int64_t first = 0; first < columns; first += {_ONLINE_BLOCK}) {{")
        self._add_line(3, f"const int64_t end = std::min<int64_t>(first + {_ONLINE_BLOCK}, columns);")
        self._add_line(3, f"float {block} = -INFINITY;")
        largest = _update("max", block, self._operand(argument))
        self._add_loop([f"reduction(max:{block})"], [argument], largest, depth=3, span=span)
        self._add_line(3, f"if ({block} > {name}) {{")
        self._add_line(4, f"{sum_name} *= {function_source('exp', [f'({name} - {block})'], self._moves)};")
        self._add_line(4, f"{name} = {block};")
        self._add_line(3, "}")
        self._add_line(
            3, f"if ({name} == -INFINITY) continue;  // nothing to add yet, and infinities have no difference"
        )
        added = _update("sum", sum_name, self._operand(weight))
        self._add_loop([f"reduction(+:{sum_name})"], [weight], added, depth=3, span=span)
        self._add_line(2, "}")

    def _add_argmax(self, each: Value) -> None:
        """Write a pass that finds the first index of the largest value."""
        name, argument = self._names[each], each.values[0]
        self._add_line(2, f"int32_t {name} = INT32_MAX;")
        update = f"{name} = std::min({name}, {self._operand(argument)} == {name}_top ? int32_t(i) : INT32_MAX);"
        self._add_loop([f"reduction(min:{name})"], [argument], update)

    def _accumulate(self, total: Value, value: str) -> str:
        return _update(total.op, self._names[total], f"double({value})", "double")

    def _add_loop(
        self,
        clauses: Iterable[str],
        targets: list[Value],
        *updates: str,
        depth: int = 2,
        span: tuple[str, str] = ("0", "columns"),
    ) -> None:
        """Write a loop over columns that computes the targets and then the updates."""
        together = " ".join(dict.fromkeys(clauses))
        shared = "omp simd" if self._shares_rows else "omp parallel for simd schedule(static)"
        self._add_line(depth, f"#pragma {shared} {together}".rstrip())
        self._add_line(depth, f"for (int64_t i = {span[0]}; i < {span[1]}; ++i) {{")
        self._add_elements(targets, depth + 1)
        for line in updates:
            self._add_line(depth + 1, line)
        self._add_line(depth, "}")

    def _add_elements(self, targets: list[Value], depth: int) -> None:
        """Define all that the targets need; read back what an earlier pass kept."""
        for each in self._kernel.elements(targets, self._held):
            if each is self._held:
                self._add_line(depth, f"const float {self._names[each]} = to[i];")
            else:
                self._add_definition(depth, each)

    # -- one value

    def _add_definition(self, depth: int, value: Value) -> None:
        args = [self._operand(each) for each in value.args]
        if value.op == "div" and "reciprocal" in self._moves and self._same_in_row(value.args[1]):
            text = f"{args[0]} * (1.0f / {args[1]})"  # the compiler moves the division out of the loop
        else:
            text = function_source(value.op, args, self._moves)
        self._add_line(depth, f"const float {self._names[value]} = {text};")

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
        place = f"{name}_row[i]" if access.row else f"{name}[i]"
        return place if self._number == "float" else f"float({place})"

    def _add_line(self, depth: int, line: str) -> None:
        self._lines.append("    " * depth + line)


def _update(op: str, name: str, value: str, kind: str = "float") -> str:
    if op == "sum":
        return f"{name} += {value};"
    return f"{name} = std::{op}<{kind}>({name}, {value});"
