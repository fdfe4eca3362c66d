"""Draws one run: the tree, what is in flight, the best so far, the limits and the time left."""

from __future__ import annotations

from collections.abc import Iterator

from stark.core.steps import Work
from stark.core.tree import ROOT_ID
from stark.progress.board import Board, NodeLine, RunBoard
from stark.progress.words import (
    Frame,
    Line,
    Marks,
    Part,
    describe_flight,
    fit,
    format_bar,
    format_curve,
    format_duration,
    format_left,
    format_name,
    format_outcome,
    format_spent,
    line_of,
    plain,
)

MAX_INDENT = 8  # deeper nodes name their parent instead
MAX_FLIGHTS = 12
MAX_NOTES = 3
CURVE_WIDTH = 40
BAR_WIDTH = 20


def draw_only_run(board: Board, frame: Frame) -> list[Line]:
    """Return the lines of the board's only run, or of the moment before it is known."""
    for run in board.runs.values():
        return draw_run(board, run, frame)
    return fit([line_of((f"{frame.spin} ", "cyan"), plain(frame.doing or "waiting"))], frame)


def draw_run(board: Board, run: RunBoard, frame: Frame) -> list[Line]:
    """Return the lines of a run, no more than the frame has room for."""
    plan = run.plan
    head = [line_of((plain(plan.task), "bold"), (f"  {plain(plan.method)}, {plan.target}, {plan.score}", "dim"))]
    status = status_lines(run, frame)
    notes = [line_of((plain(note), "yellow")) for note in list(board.notes)[-MAX_NOTES:]]
    flights = flight_lines(run, frame)
    fixed = len(head) + len(status) + len(notes) + len(flights) + 2
    tree = tree_lines(run, frame, max(3, frame.height - fixed))
    lines = [*head, *tree, line_of(), *flights, *notes, line_of(), *status]
    if len(lines) > frame.height:  # a small window: what changes is at the bottom
        lines = [*head, *[*flights, *status][-(frame.height - 1) :]] if frame.height > 1 else status[-1:]
    return fit(lines, frame)


def flight_lines(run: RunBoard, frame: Frame) -> list[Line]:
    """Return a line for each piece of work in flight: its step, and the seconds of that step."""
    flights = sorted(run.flights.values(), key=lambda flight: flight.began)
    lines = []
    for flight in flights[:MAX_FLIGHTS]:
        on = f" on {format_name(flight.parent)}" if flight.parent is not None else ""
        words = describe_flight(flight, run.plan, frame.now).removeprefix(format_name(flight.number))
        name = format_name(flight.number) if flight.work in (Work.ATTEMPT, Work.FINAL) else ""
        lines.append(line_of((f"{frame.spin} ", "cyan"), (f"{name}{on}".ljust(14), "bold"), f" {words.strip()}"))
    if len(flights) > MAX_FLIGHTS:
        lines.append([(f"  and {len(flights) - MAX_FLIGHTS} more in flight", "dim")])
    if not flights and (frame.doing or not run.has_ended):
        lines.append(line_of((f"{frame.spin} ", "cyan"), plain(frame.doing or "waiting")))
    return lines


def status_lines(run: RunBoard, frame: Frame) -> list[Line]:
    """Return the best so far, the limits, and the time."""
    plan, marks = run.plan, frame.marks
    best = run.best
    shown = line_of(("no correct kernel yet", "dim"))
    if best is not None:
        speedup, reached = run.speedup(best), run.light.describe(best.runtime_ms) if run.light else ""
        shown = line_of(
            (f"{speedup:.2f}x " if speedup else "", "bold green" if speedup and speedup > 1 else "bold"),
            f"by {format_name(best.id)} in {best.runtime_ms:.3f} ms  ",
            (f"{reached}  " if reached else "", "dim"),
            (format_curve(run.best_so_far(), min(CURVE_WIDTH, max(8, frame.width - 40)), marks), "cyan"),
        )
    share = run.made / plan.attempts if plan.attempts else 0.0
    bar = format_bar(share, min(BAR_WIDTH, max(4, frame.width // 5)), marks)
    done = line_of(("  done  ", "dim"), bar, f" {run.made} of {plan.attempts} attempts")
    ended = f"ended: {plain(run.ending.reason.meaning)}" if run.ending else "not at work"
    left = ended if run.has_ended else format_left(frame.seconds_left)
    time = f"{format_duration(frame.elapsed_s)}, {left}"
    if plan.wall_s is not None:
        time += f", limit {format_duration(plan.wall_s)}"
    return [
        line_of(("  best  ", "dim"), shown),
        done,
        line_of((" spent  ", "dim"), format_spent(run)),
        line_of(("  time  ", "dim"), time),
    ]


def tree_lines(run: RunBoard, frame: Frame, room: int) -> list[Line]:
    """Return the tree, or its part that matters most if there is too little room: the best, and what is in flight."""
    kept = _choose(run, room)
    best = run.best
    lines = []
    for node, guide in _walk(run, kept, frame.marks):
        name = "root" if node.id == ROOT_ID else f"{format_name(node.id)} {node.role}"
        star: Part = (f"  {frame.marks.star} best", "bold green") if best and node.id == best.id else ""
        advice = (f"  {plain(node.advice)}", "dim")
        lines.append(line_of((guide, "dim"), f"{name}  ", format_outcome(node, run), star, advice))
    hidden = len(run.nodes) - len(kept)
    return lines + ([line_of((f"{frame.marks.more} and {hidden} more nodes", "dim"))] if hidden else [])


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
