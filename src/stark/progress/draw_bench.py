"""Draws a benchmark: what is in flight in every run, what ended, the money and the time left."""

from __future__ import annotations

from collections import Counter

from stark.core.records import EndReason, Kind
from stark.progress.board import Board, RunBoard
from stark.progress.words import (
    Frame,
    Line,
    describe_flight,
    describe_run,
    fit,
    format_bar,
    format_count,
    format_duration,
    format_left,
    format_money,
    line_of,
    plain,
    shorten,
)

MAX_NAME = 44
MAX_NOTES = 3


def draw_bench(board: Board, title: str, frame: Frame) -> list[Line]:
    """Return the lines of a benchmark, no more than the frame has room for."""
    totals = total_lines(board, frame) if board.runs else []
    head = [line_of(("STARK benchmark", "bold"), (f"  {plain(title)}", "dim")), *totals]
    notes = [line_of((plain(note), "yellow")) for note in list(board.notes)[-MAX_NOTES:]]
    running = [line for run in board.runs.values() if run.flights for line in _running_lines(run, frame)]
    is_over = bool(board.runs) and all(run.has_ended for run in board.runs.values())
    if not running and (frame.doing or not is_over):
        running = [line_of((f"{frame.spin} ", "cyan"), plain(frame.doing or "waiting"))]
    room = max(1, frame.height - len(head) - len(notes) - 2)
    if len(running) > room:
        more = len(running) - room + 1
        running = [*running[: room - 1], line_of((f"  and {more} more in flight", "dim"))]
    ended = _ended_lines(board, room - len(running) - 1)
    return fit([*head, line_of(), *running, *([line_of()] if ended else []), *ended, *notes], frame)


def total_lines(board: Board, frame: Frame) -> list[Line]:
    """Return the totals: runs and attempts, money and time."""
    runs, made, planned = list(board.runs.values()), board.made, board.planned
    ended = sum(run.has_ended for run in runs)
    share = made / planned if planned else ended / (len(runs) or 1)
    bar = format_bar(share, max(4, min(30, frame.width // 4)), frame.marks)
    spent = board.spent
    return [
        line_of(("  done  ", "dim"), bar, f" {made} of {planned} attempts, {ended} of {len(runs)} runs"),
        line_of((" spent  ", "dim"), f"{format_money(spent.usd)}, {format_count(spent.tokens)} tokens"),
        line_of(("  time  ", "dim"), f"{format_duration(frame.elapsed_s)}, {format_left(frame.seconds_left)}"),
    ]


def _running_lines(run: RunBoard, frame: Frame) -> list[Line]:
    """Return a line for each piece of work in flight; the first names the run."""
    name_width = min(MAX_NAME, max(16, frame.width // 3))
    lines = []
    for place, flight in enumerate(sorted(run.flights.values(), key=lambda each: each.began)):
        name = shorten(describe_run(run.plan), name_width) if not place else ""
        facts = format_run_facts(run) if not place else ""
        words = describe_flight(flight, run.plan, frame.now)
        lines.append(
            line_of((f"{frame.spin} ", "cyan"), f"{name.ljust(name_width)} ", (f"{facts:>16}  ", "dim"), words)
        )
    return lines


def format_run_facts(run: RunBoard) -> str:
    """Return attempts made and the best speed-up."""
    best = run.best
    speedup = run.speedup(best) if best else None
    count = f"{run.made}/{run.plan.attempts}" if run.plan.kind is Kind.SEARCH else ""
    return "  ".join(filter(None, (count, f"{speedup:.2f}x" if speedup and run.plan.kind is Kind.SEARCH else "")))


def _ended_lines(board: Board, room: int) -> list[Line]:
    """Return the runs that ended last, and how many ended for which reason."""
    ended = [run for run in board.runs.values() if run.has_ended]
    if not ended or room < 2:
        return []
    reasons = Counter(run.ending.reason.meaning if run.ending else "done" for run in ended)
    lines = [line_of(("ended: " + ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())), "bold"))]
    for run in ended[-(room - 1) :]:
        is_done = run.ending is None or run.ending.reason is EndReason.DONE
        how = "" if run.ending is None or is_done else f"  {plain(run.ending.message or run.ending.reason.meaning)}"
        name = shorten(describe_run(run.plan), MAX_NAME).ljust(MAX_NAME)
        lines.append(line_of(f"  {name} ", (f"{format_run_facts(run):>16}", "dim"), (how, "yellow")))
    return lines
