"""The part of a tree that a prompt shows: one row per attempt, the base, and other sources as differences from it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from stark.agents.informed.regions import MAX_NAMED, find_regions
from stark.agents.informed.twins import normalise
from stark.core.bound import SpeedOfLight, tree_speed_of_light
from stark.core.records import Ticket
from stark.core.settings import WindowSettings
from stark.core.tree import ROOT_ID, Node, Role, Tree
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.report_text import format_bound, format_peaks, format_share

MAX_ROWS = 60
IDEA_CHARACTERS = 160
EXPLANATION_CHARACTERS = 300
LOG_CHARACTERS = 400
PROFILE_LINES, PROFILE_CHARACTERS = 25, 2_000
SIBLINGS, DIFF_CHARACTERS = 2, 1_000
FAILURES = 2


@dataclass(frozen=True)
class Base:
    """The attempt to build on, for templates."""

    number: int
    is_root: bool
    title: str
    advice: str
    explanation: str
    log: str
    profile: str
    source: str
    outline: tuple[str, ...]


@dataclass(frozen=True)
class Excerpt:
    """Another attempt, for templates: its source, its difference from the base, or its log."""

    title: str
    text: str
    language: str


# -- rows -----------------------------------------------------------------------------------------------------------


def list_rows(tree: Tree, base_id: int) -> list[str]:
    """Return one line for each attempt: number, parent, result, state, idea. Of many, the latest and the fastest."""
    best, nodes, limit = tree.best, list(tree), tree_speed_of_light(tree)
    if len(nodes) > MAX_ROWS:
        fastest = {node.id for node in list(tree.ranked())[: MAX_ROWS // 2]} | {ROOT_ID, base_id}
        latest = {node.id for node in nodes[-MAX_ROWS // 2 :]}
        nodes = [node for node in nodes if node.id in fastest | latest]
    return [_format_row(node, tree.root, best, base_id, limit) for node in nodes]


def _format_row(node: Node, root: Node, best: Node | None, base_id: int, limit: SpeedOfLight | None) -> str:
    place = "the task's Model" if node.id == ROOT_ID else f"on #{node.parent_id}"
    states = [*_list_states(node, best), *(["the base"] if node.id == base_id else [])]
    cells = [f"#{node.id}", place, format_result(node, root, limit), "; ".join(states), format_idea(node)]
    return " | ".join(cell for cell in cells if cell)


def format_result(node: Node, root: Node, limit: SpeedOfLight | None = None) -> str:
    """Return a node's outcome in a few words, with the share of the bound that it reaches."""
    if node.runtime_ms is None:
        rule = f" ({node.report.rule})" if node.report.rule else ""
        return f"failed: {node.report.outcome.replace('_', ' ')}{rule}"
    share = limit.share(node.runtime_ms) if limit else None
    is_compared = node.id != root.id and root.runtime_ms
    texts = [
        f"{node.runtime_ms:.4g} ms",
        *([f"{(root.runtime_ms or 0.0) / node.runtime_ms:.2f}x"] if is_compared else []),
        *([format_share(share)] if share is not None else []),
    ]
    return ", ".join(texts)


def _list_states(node: Node, best: Node | None) -> list[str]:
    states = []
    if node.same_as is not None:
        states.append(f"same code as #{node.same_as}")
    elif best is not None and node.id == best.id:
        states.append("the best")
    elif best is not None and _is_equal(node, best):
        states.append("equal to the best")
    if node.report.labels and node.report.labels.precision:
        states.append(f"exact as {node.report.labels.precision}")
    return states


def _is_equal(node: Node, best: Node) -> bool:
    """True if two times differ by less than the noise."""
    mine, other = node.report.timing, best.report.timing
    return mine is not None and other is not None and mine.interval_ms[0] <= other.interval_ms[1]


def format_idea(node: Node) -> str:
    """Return what an attempt tried, in one line."""
    if node.id == ROOT_ID:
        return ""
    if node.role is Role.DEBUG:
        return f"repair: {shorten_line(node.attempt.explanation, IDEA_CHARACTERS)}"
    plan = node.plan
    return shorten_line((plan.idea or plan.advice) if plan else node.attempt.explanation, IDEA_CHARACTERS)


def format_limit(tree: Tree) -> str:
    """Return the bound of the task in words; nothing if it has none."""
    limit = tree_speed_of_light(tree)
    if limit is None:
        return ""
    doubts = "".join(f" Doubt: {doubt}." for doubt in limit.bound.doubts)
    beaten = " Shorter algebra was found and beats it." if limit.is_followed else " Only shorter algebra beats it."
    return f"{format_bound(limit.bound)}.{beaten}{doubts} Peaks: {format_peaks(limit.bound.peaks)}."


# -- the base -------------------------------------------------------------------------------------------------------


def describe_base(node: Node, tree: Tree, settings: WindowSettings, source: str | None = None) -> Base:
    """Describe the attempt to build on. ``source`` replaces its source, as by a scaffold."""
    failed, is_root = node.failed, node.id == ROOT_ID
    return Base(
        number=node.id,
        is_root=is_root,
        title=format_result(node, tree.root, tree_speed_of_light(tree)),
        advice=node.plan.advice if node.plan else "",
        explanation=shorten_line(node.attempt.explanation, EXPLANATION_CHARACTERS),
        log=shorten(node.report.log.strip(), settings.log_characters if failed else LOG_CHARACTERS),
        profile=format_profile(node.report) if settings.profile else "",
        source=source or node.source or "",
        outline=() if is_root else tuple(_outline(node.source or "")),
    )


def format_profile(report: EvalReport) -> str:
    """Return the profile of a report, cut to what a prompt may hold."""
    lines = [line.strip() for line in (report.profile or "").splitlines() if line.strip()]
    more = [f"[{len(lines) - PROFILE_LINES} more lines]"] if len(lines) > PROFILE_LINES else []
    return shorten("\n".join([*lines[:PROFILE_LINES], *more]), PROFILE_CHARACTERS)


def _outline(source: str) -> list[str]:
    return [f"{region.name} {region.first}-{region.last}" for region in find_regions(source)[:MAX_NAMED]]


# -- other sources --------------------------------------------------------------------------------------------------


def list_others(ticket: Ticket, settings: WindowSettings) -> list[Excerpt]:
    """Return the best attempt in full, and the differences of the base's latest children. No near-twins."""
    tree, base = ticket.tree, ticket.parent
    if settings.enabled is False or base.id == ROOT_ID:
        return []  # a design of its own needs no example
    seen = {normalise(base.source or "")}
    found = []
    children = [node for node in reversed(tree.children(base.id)) if not node.failed]
    best = [tree.best] if tree.best and settings.leaders else []
    for node in [*best, *children[: min(SIBLINGS, settings.cap)]]:
        if node.source and normalise(node.source) not in seen:
            seen.add(normalise(node.source))
            found.append(_excerpt(node, base, tree.root, is_best=node in best))
    return found


def list_sources(tree: Tree, numbers: Sequence[int]) -> list[Excerpt]:
    """Return the full sources of these attempts."""
    nodes = [tree[number] for number in numbers]
    return [Excerpt(f"#{node.id}: {format_result(node, tree.root)}", node.source or "", "python") for node in nodes]


def list_failures(ticket: Ticket, settings: WindowSettings) -> list[Excerpt]:
    """Return the logs of the latest failed attempts on the base."""
    if settings.enabled is False:
        return []
    failed = [node for node in ticket.tree.children(ticket.parent.id) if node.failed and node.report.log.strip()]
    return [
        Excerpt(
            f"#{node.id}: {format_result(node, ticket.tree.root)}", shorten(node.report.log.strip(), LOG_CHARACTERS), ""
        )
        for node in failed[-FAILURES:]
    ]


def _excerpt(node: Node, base: Node, root: Node, is_best: bool) -> Excerpt:
    """Show a source as its difference from the base, or in full if it is the best and that is not much longer."""
    title = f"#{node.id}{', the best' if is_best else ''}: {format_result(node, root)}"
    source = node.source or ""
    lines = difflib.unified_diff((base.source or "").splitlines(), source.splitlines(), lineterm="", n=1)
    change = "\n".join(list(lines)[2:])
    if is_best and 2 * len(change) > len(source):
        return Excerpt(title, source, "python")
    limit = len(change) if is_best else DIFF_CHARACTERS
    return Excerpt(f"{title}; what it changes in the base", shorten(change, limit), "diff")


# -- texts ----------------------------------------------------------------------------------------------------------


def shorten_line(text: str, limit: int) -> str:
    """Return the text in one line, cut at the end."""
    line = re.sub(r"\s+", " ", text).strip()
    return line if len(line) <= limit else f"{line[: limit - 4].rstrip()} ..."


def shorten(text: str, limit: int) -> str:
    """Cut out the middle of a long text: compilers state the error first, tracebacks last."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit - limit // 2], text[len(text) - limit // 2 :]
    return f"{head}\n[... {len(text) - limit} characters left out ...]\n{tail}" if limit else ""
