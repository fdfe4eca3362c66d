"""Tells what is new on a board that a store fills, as plain lines."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from stark.cli.terminal.screen import format_name
from stark.progress.board import Board
from stark.progress.words import describe_run, format_outcome, plain


class Story:
    """Remembers what was told."""

    def __init__(self) -> None:
        self._told: set[tuple[str, int]] = set()
        self._ended: set[str] = set()

    def news(self, board: Board, is_single: bool) -> Iterator[Text]:
        """Yield a line for each new node of a single run, or for each run of a benchmark that has ended."""
        for name, run in board.runs.items():
            for node in run.nodes.values() if is_single else ():
                if (name, node.id) not in self._told:
                    self._told.add((name, node.id))
                    yield Text.assemble(
                        f"{format_name(node.id):>5}  ", format_outcome(node, run), (f"  {plain(node.advice)}", "dim")
                    )
            if not is_single and run.has_ended and name not in self._ended:
                self._ended.add(name)
                how = run.ending.reason.meaning if run.ending else "done"
                yield Text.assemble(f"{describe_run(run.plan)}: ", (plain(how), "dim"))
