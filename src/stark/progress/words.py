"""Words and marks of the live views. A line is a list of parts, each a text or a pair of text and style.

All text of models and files is data: ``plain`` removes what could control a terminal.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from stark.core.steps import Flight, Step, Work
from stark.core.tree import ROOT_ID
from stark.progress.board import NodeLine, RunBoard, RunPlan
from stark_worker.protocol.report_text import strip_control_chars

FRAMES_PER_S = 8

Part = str | tuple[str, str]
Line = list[Part]


@dataclass(frozen=True)
class Frame:
    """The room for a drawing, its marks, and the time: ``now`` of the system's clock, ``elapsed_s`` since the start."""

    width: int
    height: int
    marks: Marks
    now: float
    elapsed_s: float
    seconds_left: float | None = None
    doing: str = ""

    @property
    def spin(self) -> str:
        return self.marks.spinner[int(self.now * FRAMES_PER_S) % len(self.marks.spinner)]


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


def line_of(*parts: Part | Line) -> Line:
    """Return a line of parts and other lines."""
    return [each for part in parts for each in (part if isinstance(part, list) else [part])]


def fit(lines: Sequence[Line], frame: Frame) -> list[Line]:
    """Cut lines to the width and the height of the frame."""
    return [cut(line, frame.width, frame.marks.more) for line in lines[: frame.height]]


def cut(line: Line, width: int, more: str) -> Line:
    """Cut a line to a width, with a mark where something is missing."""
    if sum(text_width(text_of(part)) for part in line) <= width:
        return line
    room, kept = max(0, width - len(more)), Line()
    for part in line:
        text = text_of(part)
        short = "".join(letter for place, letter in enumerate(text) if text_width(text[: place + 1]) <= room)
        kept.append(short if isinstance(part, str) else (short, part[1]))
        room -= text_width(short)
        if short != text:
            break
    return [*kept, more[:width]]


def text_of(part: Part) -> str:
    return part if isinstance(part, str) else part[0]


def text_width(text: str) -> int:
    """Return the columns that a text takes: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(bool(unicodedata.combining(letter)) for letter in text)


def shorten(text: str, most: int) -> str:
    clean = plain(text)
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"


def format_name(number: int | None) -> str:
    return "root" if number == ROOT_ID else f"#{number}"


def format_money(usd: float | None) -> str:
    """Return US dollars as text; None stands for an unknown price."""
    return "price not known" if usd is None else f"${usd:,.2f}"


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


def format_outcome(node: NodeLine, run: RunBoard) -> Part:
    """Return a node's time and speed-up, or its failure."""
    if node.runtime_ms is None:
        rule = f" ({node.rule})" if node.rule else ""
        return plain(f"{node.outcome.replace('_', ' ')}{rule}"), "red"
    speedup = run.speedup(node)
    faster = speedup is not None and speedup > 1.0
    shown = "" if speedup is None or node.parent_id is None else f"  {speedup:.2f}x"
    return f"{node.runtime_ms:.3f} ms{shown}", "green" if faster else "default"


def format_spent(run: RunBoard) -> str:
    """Return money and tokens spent, and their limits."""
    plan, spent = run.plan, run.spent
    is_free = spent.tokens > 0 and not spent.usd  # its price is not known, or there is none
    limit = f" of {format_money(plan.usd)}" if plan.usd is not None and not is_free else ""
    money = format_money(None if is_free else spent.usd) + limit
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


def format_bar(done: float, width: int, marks: Marks) -> Line:
    full = round(min(1.0, max(0.0, done)) * width)
    return [(marks.bar[0] * full, "green"), (marks.bar[1] * (width - full), "dim")]


def describe_run(plan: RunPlan) -> str:
    """Return a short name for a run of a benchmark."""
    if plan.kind == "search":
        return f"{plain(plan.task)}, {plain(plan.method)}, seed {plan.seed}"
    return f"{plain(plan.task)}, {plan.kind}{f' {plain(plan.method)}' if plan.kind == 'judged' else ''}"
