"""Draws one run: the tree, what is in flight, the best so far, the limits and the time left."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from stark.cli.live.view import Frame, View
from stark.cli.live.words import (
    Marks,
    describe_flight,
    format_bar,
    format_curve,
    format_duration,
    format_left,
    format_outcome,
    format_spent,
    plain,
)
from stark.cli.terminal.screen import console, format_name
from stark.core.interfaces import Listener
from stark.core.steps import Work
from stark.core.tree import ROOT_ID
from stark.progress.board import Board, NodeLine, RunBoard

MAX_INDENT = 8  # deeper nodes name their parent instead
MAX_PRINTED_NODES = 60
MAX_FLIGHTS = 12
MAX_NOTES = 3
CURVE_WIDTH = 40
BAR_WIDTH = 20


def open_run_view(say: Listener, plain: bool = False, board: Board | None = None) -> View:
    """Return a view of the only run of a board."""
    return View(draw_only_run, say, plain, board)


def draw_only_run(board: Board, frame: Frame) -> list[Text]:
    """Return the lines of the board's only run, or of the moment before it is known."""
    for run in board.runs.values():
        return draw_run(board, run, frame)
    return fit([Text.assemble((f"{frame.spin} ", "cyan"), frame.doing)], frame)


def print_tree(view: View) -> None:
    """Print the tree that the live view showed last, so that it stays."""
    for run in view.board.runs.values():
        frame = view.frame(console.width, MAX_PRINTED_NODES)
        for line in fit(tree_lines(run, frame, MAX_PRINTED_NODES), frame):
            console.print(line)


def draw_run(board: Board, run: RunBoard, frame: Frame) -> list[Text]:
    """Return the lines of a run, no more than the frame has room for."""
    plan = run.plan
    head = [Text.assemble((plain(plan.task), "bold"), (f"  {plain(plan.method)}, {plan.target}, {plan.score}", "dim"))]
    status = status_lines(run, frame)
    notes = [Text(plain(note), "yellow") for note in list(board.notes)[-MAX_NOTES:]]
    flights = flight_lines(run, frame)
    fixed = len(head) + len(status) + len(notes) + len(flights) + 2
    tree = tree_lines(run, frame, max(3, frame.height - fixed))
    lines = [*head, *tree, Text(), *flights, *notes, Text(), *status]
    if len(lines) > frame.height:  # a small window: what changes is at the bottom
        lines = [*head, *[*flights, *status][-(frame.height - 1) :]] if frame.height > 1 else status[-1:]
    return fit(lines, frame)


def fit(lines: list[Text], frame: Frame) -> list[Text]:
    """Cut lines to the width of the frame."""
    for line in lines:
        line.no_wrap = True
        line.truncate(frame.width, overflow="ellipsis")
    return lines[: frame.height]


def flight_lines(run: RunBoard, frame: Frame) -> list[Text]:
    """Return a line for each piece of work in flight: its step, and the seconds of that step."""
    flights = sorted(run.flights.values(), key=lambda flight: flight.began)
    lines = []
    for flight in flights[:MAX_FLIGHTS]:
        on = f" on {format_name(flight.parent)}" if flight.parent is not None else ""
        words = describe_flight(flight, run.plan, frame.now).removeprefix(format_name(flight.number))
        name = format_name(flight.number) if flight.work in (Work.ATTEMPT, Work.FINAL) else ""
        lines.append(Text.assemble((f"{frame.spin} ", "cyan"), (f"{name}{on}".ljust(14), "bold"), f" {words.strip()}"))
    if len(flights) > MAX_FLIGHTS:
        lines.append(Text(f"  and {len(flights) - MAX_FLIGHTS} more in flight", "dim"))
    if not flights and not run.has_ended:
        lines.append(Text.assemble((f"{frame.spin} ", "cyan"), plain(frame.doing or "waiting")))
    return lines


def status_lines(run: RunBoard, frame: Frame) -> list[Text]:
    """Return the best so far, the limits, and the time."""
    plan, marks = run.plan, frame.marks
    best = run.best
    shown = Text("no correct kernel yet", "dim")
    if best is not None:
        speedup = run.speedup(best)
        shown = Text.assemble(
            (f"{speedup:.2f}x " if speedup else "", "bold green" if speedup and speedup > 1 else "bold"),
            f"by {format_name(best.id)} in {best.runtime_ms:.3f} ms  ",
            (format_curve(run.best_so_far(), min(CURVE_WIDTH, max(8, frame.width - 40)), marks), "cyan"),
        )
    share = run.made / plan.attempts if plan.attempts else 0.0
    bar = format_bar(share, min(BAR_WIDTH, max(4, frame.width // 5)), marks)
    done = Text.assemble(("  done  ", "dim"), bar, f" {run.made} of {plan.attempts} attempts")
    time = f"{format_duration(frame.elapsed_s)}, {format_left(frame.seconds_left)}"
    if plan.wall_s is not None:
        time += f", limit {format_duration(plan.wall_s)}"
    return [
        Text.assemble(("  best  ", "dim"), shown),
        done,
        Text.assemble((" spent  ", "dim"), format_spent(run)),
        Text.assemble(("  time  ", "dim"), time),
    ]


def tree_lines(run: RunBoard, frame: Frame, room: int) -> list[Text]:
    """Return the tree, or its part that matters most if there is too little room: the best, and what is in flight."""
    kept = _choose(run, room)
    best = run.best
    lines = []
    for node, guide in _walk(run, kept, frame.marks):
        name = "root" if node.id == ROOT_ID else f"{format_name(node.id)} {node.role}"
        star = Text(f"  {frame.marks.star} best", "bold green") if best and node.id == best.id else Text()
        advice = Text(f"  {plain(node.advice)}", "dim")
        lines.append(Text.assemble((guide, "dim"), f"{name}  ", format_outcome(node, run), star, advice))
    hidden = len(run.nodes) - len(kept)
    return lines + ([Text(f"{frame.marks.more} and {hidden} more nodes", "dim")] if hidden else [])


def _choose(run: RunBoard, room: int) -> set[int]:
    """Choose the nodes to draw: the best and the parents of what is in flight first, then the latest."""
    nodes = run.nodes
    if len(nodes) <= room:
        return set(nodes)
    wanted = [run.best.id] if run.best else []
    wanted += [flight.parent for flight in run.flights.values() if flight.parent is not None]
    kept = {ROOT_ID} & set(nodes)
    for node_id in [*wanted, *reversed(nodes)]:
        path = set(_path(run, node_id)) - kept
        if len(kept) + len(path) < room:
            kept |= path
    return kept


def _path(run: RunBoard, node_id: int | None) -> Iterator[int]:
    while node_id is not None and node_id in run.nodes:
        yield node_id
        node_id = run.nodes[node_id].parent_id


def _walk(run: RunBoard, kept: set[int], marks: Marks) -> Iterator[tuple[NodeLine, str]]:
    """Yield the kept nodes, parents first, each with the guide that leads to it."""
    children: dict[int | None, list[NodeLine]] = {}
    for node in run.nodes.values():
        if node.id in kept:
            children.setdefault(node.parent_id, []).append(node)
    stack = [(node, "", "", 0) for node in reversed(children.get(None, []))]
    while stack:
        node, guide, below, depth = stack.pop()
        yield node, guide if depth <= MAX_INDENT else f"{guide}on {format_name(node.parent_id)}: "
        under = children.get(node.id, [])
        is_deep = depth >= MAX_INDENT
        for place, child in reversed(list(enumerate(under))):
            is_last = place == len(under) - 1
            mark = marks.last if is_last else marks.branch
            further = below if is_deep else below + ("   " if is_last else marks.through)
            stack.append((child, below + mark, further, depth + 1))
