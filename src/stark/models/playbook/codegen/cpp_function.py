"""Generates the C++ of one kernel: totals, values per row, and the passes over a row."""

from __future__ import annotations

from stark.models.playbook.codegen.cpp_passes import CLAUSE, START, Passes
from stark.models.playbook.fusion.kernel import Kernel, Level
from stark.models.playbook.moves import Moves
from stark.models.playbook.trace.values import REDUCTIONS, Value


class Function(Passes):
    """Writes one kernel with a set of moves. ``reused`` is the leaf whose memory the output overwrites."""

    def __init__(self, kernel: Kernel, moves: Moves, reused: Value | None, number: str = "float") -> None:
        super().__init__(kernel, moves)
        self._number = number
        self._online = kernel.online if "online" in moves else {}
        self._keep = self._choose_kept(reused)

    def text(self) -> str:
        kernel = self._kernel
        pointers = [f"const {self._number}* {name}" for name in self._leaves.values()]
        result = "int64_t" if kernel.sink.op == "argmax" else self._number
        sizes = ["int64_t rows", "int64_t columns"]
        if "specialise" in self._moves:
            sizes = ["int64_t", "int64_t"]
        self._add_line(0, f'extern "C" void {kernel.name}({", ".join([*pointers, f"{result}* out", *sizes])}) {{')
        if "specialise" in self._moves:
            self._add_line(1, f"constexpr int64_t rows = {kernel.rows}, columns = {kernel.columns};")
        self._add_totals()
        self._add_line(1, "for (int64_t row = 0; row < rows; ++row) {")
        self._add_rows()
        self._add_line(1, "}")
        self._finish_totals()
        self._add_line(0, "}")
        return "\n" + "\n".join(self._lines) + "\n"

    # -- the whole

    def _add_totals(self) -> None:
        clauses = ""
        for each in self._total_reductions:
            start = "0.0" if each.op == "sum" else START[each.op]
            self._add_line(1, f"double {self._names[each]} = {start};")
            clauses += f" reduction({CLAUSE[each.op]}:{self._names[each]})"
        if self._shares_rows:
            self._add_line(1, f"#pragma omp parallel for schedule(static){clauses}")

    def _finish_totals(self) -> None:
        if self._kernel.levels[self._kernel.sink] is Level.TOTAL:
            for each in self._kernel.order:
                if each.op not in REDUCTIONS and self._kernel.levels[each] is Level.TOTAL:
                    self._add_definition(1, each)
            self._add_line(1, f"out[0] = {self._names[self._kernel.sink]};")

    # -- one row

    def _add_rows(self) -> None:
        kernel = self._kernel
        self._add_row_start()
        self._add_row_values(0)
        for stage, together in enumerate(kernel.passes, 1):
            if together[0] in self._online:
                self._online_pass(together[0], self._online[together[0]])
            elif together[0] not in self._online.values():
                self._reduce(together, self._keep[stage - 1])
            self._add_row_values(stage)
        of_rows = [each for each in self._total_reductions if kernel.levels.get(each.values[0]) is Level.ROW]
        self._reduce([each for each in self._total_reductions if each not in of_rows], None)
        for each in of_rows:
            self._add_line(2, self._accumulate(each, self._operand(each.args[0])))
        self._add_store()

    def _add_row_values(self, stage: int) -> None:
        kernel = self._kernel
        for each in kernel.order:
            if kernel.levels[each] is Level.ROW and each.op not in REDUCTIONS and kernel.stages[each] == stage:
                self._add_definition(2, each)

    def _add_row_start(self) -> None:
        for leaf, name in self._leaves.items():
            access = self._kernel.leaves[leaf]
            if access.column and access.row:
                self._add_line(2, f"const {self._number}* {name}_row = {name} + {access.row} * columns;")
            elif not access.column:
                self._add_line(2, f"const float {name}_value = {name}[{access.row or 0}];")
        if self._kernel.levels[self._kernel.sink] is Level.ELEMENT:
            self._add_line(2, f"{self._number}* to = out + row * columns;")

    def _add_store(self) -> None:
        kernel, sink = self._kernel, self._kernel.sink
        if kernel.levels[sink] is Level.ROW:
            self._add_line(2, f"out[row] = {self._names[sink]};")
        elif kernel.levels[sink] is Level.ELEMENT:
            self._add_loop([], [sink], f"to[i] = {self._names[sink]};")

    def _choose_kept(self, reused: Value | None) -> list[Value | None]:
        """The values kept after each pass; none if the output overwrites a leaf that a later pass reads."""
        kernel, cuts = self._kernel, self._kernel.cuts
        if "keep" not in self._moves or self._online:  # an online pass computes relative to the maximum so far
            return [None] * len(cuts)
        for place, cut in enumerate(cuts):
            later = [part for targets in kernel.targets[place + 1 :] for part in kernel.elements(targets, cut)]
            if cut and reused and any(reused in part.values for part in later if part is not cut):
                return [None] * len(cuts)
        return cuts
