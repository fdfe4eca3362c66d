"""The commands ``stark watch`` and ``stark runs``: they only read stores, so a run never waits for them."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from stark.cli.live.view import View, print_lines
from stark.cli.options import Plain, RunFolder, RunName
from stark.cli.terminal import screen
from stark.cli.terminal.command import format_command
from stark.progress.words import plain as plain_text

POLL_S = 0.5


def watch(folder: RunFolder, run: RunName = None, plain: Plain = False) -> None:
    """Follow a run or a benchmark from another terminal, until it ends. Ctrl-C ends only the view."""
    from stark.cli.live.stored import StoredBoard
    from stark.cli.live.story import Story
    from stark.progress.draw_bench import draw_bench
    from stark.progress.draw_run import draw_only_run

    stored = StoredBoard(folder, _find(folder, run) if run else None)

    def is_single() -> bool:  # asked again and again: a run may have no record yet
        return len(stored.board.runs) <= 1

    story = Story()
    view = View(
        lambda board, frame: draw_only_run(board, frame) if is_single() else draw_bench(board, str(folder), frame),
        plain=plain,
        board=stored.board,
        doing="",
    )
    view.time_left = stored.seconds_left
    if not stored.is_written():
        screen.show_line(f"No process works on {folder}; this is how it stands.")
        _print_board(view, stored.seconds)
        return
    try:
        with view:
            view.began = time.time() - stored.seconds if is_single() else view.began
            while stored.is_written():
                for line in story.news(stored.board, is_single()):
                    view.line(line)
                time.sleep(POLL_S)
                stored.refresh()
    except KeyboardInterrupt:
        screen.show_line(f"The run goes on. To see it again, type: {format_command('watch', folder)}")
        return
    _print_board(view, stored.seconds)


def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of runs.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the runs and benchmarks in a folder: state, best, share of its bound (~: a hint), cost and age."""
    from stark.cli.live.listing import list_runs

    found = list_runs(folder)
    if as_json:
        rows = [dataclasses.asdict(each) | {"folder": str(each.folder)} for each in found]
        screen.console.out(json.dumps(rows, ensure_ascii=False, indent=1), highlight=False)
        return
    if not found:
        screen.show_line(f"There is no run in {folder}. To start one, type: {format_command('optimize', 'TASK.py')}")
        return
    table = Table(box=None, pad_edge=False)
    for name, side in (("folder", "left"), ("task", "left"), ("state", "left")):
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for name in ("best", "of bound", "attempts", "cost", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        best = "" if each.speedup is None else f"{each.speedup:.2f}x"
        share = "" if each.share_of_bound is None else f"{each.share_of_bound:.0%}"
        reached = share if each.is_bound_certain or not share else f"~{share}"
        attempts = "" if each.attempts is None else f"{each.made}/{each.attempts}"
        cost = "" if each.made is None else screen.format_money(each.usd)
        age = "" if each.age_s is None else format_age(each.age_s)
        style = {"running": "bold green", "unreadable": "red"}.get(each.state, "default")
        cells = (str(each.folder), each.task, each.state, best, reached, attempts, cost, age)
        table.add_row(*(Text(plain_text(cell), style if place == 2 else "") for place, cell in enumerate(cells)))
    screen.print_full_width(table)
    for problem in dict.fromkeys(each.problem for each in found if each.problem):
        screen.show_line(problem)


def format_age(seconds: float) -> str:
    """Return an age in one unit."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _print_board(view: View, seconds: float) -> None:
    """Print how a store stands."""
    width, height = screen.console.width, 10_000
    frame = dataclasses.replace(view.frame(width, height), elapsed_s=seconds)
    print_lines(view.draw_with(frame))


def _find(folder: Path, name: str) -> str:
    from contextlib import closing

    from stark.store.lookup import pick_run
    from stark.store.open import open_store

    with closing(open_store(folder, write=False)) as store:
        return pick_run(store, folder, name).id
