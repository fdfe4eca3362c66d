"""Words and marks that the live views share. All text of models and files is data: it carries no escapes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from stark.cli.terminal.screen import format_money, format_name
from stark.core.steps import Flight, Step, Work
from stark.progress.board import NodeLine, RunBoard, RunPlan
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report_text import strip_control_chars

MAX_NAME = 48


@dataclass(frozen=True)
class Marks:
    """The characters that a terminal can show."""

    spinner: str
    curve: str
    bar: str  # done and open
    branch: str
    last: str
    through: str
    star: str
    dot: str
    more: str


UNICODE = Marks("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "▁▂▃▄▅▆▇█", "━─", "├─ ", "└─ ", "│  ", "★", "·", "…")
ASCII = Marks("|/-\\", "._-=+*#@", "=-", "|- ", "`- ", "|  ", "*", "-", "...")


def marks_for(encoding: str | None = None) -> Marks:
    """Return the marks that an encoding holds; by default, that of standard output."""
    name = encoding or sys.stdout.encoding or "ascii"
    return UNICODE if name.lower().replace("-", "").startswith("utf") else ASCII


def plain(text: str) -> str:
    """Return one line without control characters."""
    return strip_control_chars(text).replace("\n", " ")


def shorten(text: str, most: int) -> str:
    clean = plain(text)
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"


def format_duration(seconds: float) -> str:
    """Return seconds as a person says them."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


def format_left(seconds: float | None) -> str:
    """Return the time left, no more exact than it is known."""
    if seconds is None:
        return "time left not known yet"
    if seconds < 60:
        return "less than a minute left" if seconds > 20 else "nearly done"
    if seconds < 5400:
        return f"about {round(seconds / 60)} min left"
    return f"about {seconds / 3600:.1f} h left"


def format_step(flight: Flight, plan: RunPlan) -> str:
    """Return the step in words, with the device by its name."""
    device = "CPU" if plan.target.device_kind == "cpu" else "GPU"
    return f"waiting for the {device}" if flight.step is Step.WAITING else str(flight.step)


def format_flight_name(flight: Flight) -> str:
    if flight.work is Work.ATTEMPT:
        return format_name(flight.number)
    if flight.work is Work.FINAL:
        return f"{format_name(flight.number)} final check"
    return str(flight.work)


def describe_flight(flight: Flight, plan: RunPlan, now: float) -> str:
    """Return what is in flight, its step and the seconds of that step."""
    waited = format_duration(max(0.0, now - flight.since))
    return f"{format_flight_name(flight)} {format_step(flight, plan)} {waited}"


def format_outcome(node: NodeLine, run: RunBoard) -> Text:
    """Return a node's time and speed-up, or its failure."""
    if node.runtime_ms is None:
        rule = f" ({node.rule})" if node.rule else ""
        return Text(plain(f"{node.outcome.replace('_', ' ')}{rule}"), "red")
    speedup = run.speedup(node)
    faster = speedup is not None and speedup > 1.0
    shown = "" if speedup is None or node.parent_id is None else f"  {speedup:.2f}x"
    return Text(f"{node.runtime_ms:.3f} ms{shown}", "green" if faster or node.outcome is not Outcome.OK else "default")


def format_spent(run: RunBoard) -> str:
    """Return money and tokens spent, and their limits."""
    plan, spent = run.plan, run.spent
    money = format_money(spent.usd) + (f" of {format_money(plan.usd)}" if plan.usd is not None else "")
    tokens = f"{format_count(spent.tokens)} tokens"
    return f"{money}, {tokens}" + (f" of {format_count(plan.tokens)}" if plan.tokens is not None else "")


def format_count(number: int) -> str:
    return f"{number:,}" if number < 10_000 else f"{number / 1000:,.0f}k"


def format_curve(values: Sequence[float], width: int, marks: Marks) -> str:
    """Return values as a line of blocks, the highest as a full one. Long series keep their last value."""
    if not values or width < 1:
        return ""
    picked = [values[int(place * (len(values) - 1) / max(1, width - 1))] for place in range(min(width, len(values)))]
    picked = picked if len(values) > width else list(values)
    top = max(picked) or 1.0
    return "".join(marks.curve[min(len(marks.curve) - 1, int(value / top * len(marks.curve)))] for value in picked)


def format_bar(done: float, width: int, marks: Marks) -> Text:
    full = round(min(1.0, max(0.0, done)) * width)
    return Text.assemble((marks.bar[0] * full, "green"), (marks.bar[1] * (width - full), "dim"))


def describe_run(plan: RunPlan) -> str:
    """Return a short name for a run of a benchmark."""
    if plan.kind == "search":
        return f"{plain(plan.task)}, {plain(plan.method)}, seed {plan.seed}"
    return f"{plain(plan.task)}, {plan.kind}{f' {plain(plan.method)}' if plan.kind == 'judged' else ''}"
