"""Dynamic context windows: the earlier attempts that each role sees. Rebuilt for every call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stark.core.records import Ticket
from stark.core.settings import WindowSettings
from stark.core.tree import ROOT_ID, Node


@dataclass(frozen=True)
class Window:
    """The nodes that one agent sees.

    The prompt always holds the sources of the selected node (latest attempt) and the root (task). ``shown`` are the
    nodes whose observations are listed, in landing order. With ``cap_includes_root`` the draw may leave out those two,
    but never a node to repair.
    """

    selected: Node
    root: Node
    shown: tuple[Node, ...]

    @property
    def others(self) -> tuple[Node, ...]:
        """The nodes shown in addition to the selected node and the root."""
        return tuple(node for node in self.shown if node.id not in (self.selected.id, self.root.id))

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of all nodes that the agent sees, each once."""
        return tuple(dict.fromkeys(node.id for node in (self.selected, self.root, *self.others)))


def plan_window(ticket: Ticket, settings: WindowSettings) -> Window:
    """{i, root} + D(i) + the leaders outside i's subtree."""
    tree, selected = ticket.tree, ticket.parent
    leaders = tree.leaders(settings.leaders, outside=selected.id)
    return _window(ticket, settings, "plan", [*tree.children(selected.id), *leaders])


def code_window(ticket: Ticket, settings: WindowSettings) -> Window:
    """{i, root} + D(i) + the children of i's siblings."""
    tree, selected = ticket.tree, ticket.parent
    cousins = [child for sibling in tree.siblings(selected.id) for child in tree.children(sibling.id)]
    return _window(ticket, settings, "code", [*tree.children(selected.id), *cousins])


def debug_window(ticket: Ticket, settings: WindowSettings) -> Window:
    """{i, root} + S(i)."""
    return _window(ticket, settings, "debug", ticket.tree.siblings(ticket.parent.id))


def bare_window(ticket: Ticket, observations: bool | None = True) -> Window:
    """{i, root}; their sources alone if observations are not shown."""
    if observations is False:
        return Window(ticket.parent, ticket.tree.root, ())
    return _make_window(ticket, {ticket.parent.id, ticket.tree.root.id})


def _window(ticket: Ticket, settings: WindowSettings, role: str, candidates: Iterable[Node]) -> Window:
    if settings.enabled is False:  # None leaves it to the method, and this is the method's own window
        return bare_window(ticket)
    always = dict.fromkeys([ticket.parent.id, ticket.tree.root.id])
    others = dict.fromkeys(node.id for node in candidates if node.source is not None and node.id not in always)
    if not settings.cap_includes_root:
        kept, pool, room = list(always), list(others), settings.cap
    else:
        kept = [ticket.parent.id] if role == "debug" and settings.cap else []
        pool = [number for number in (*always, *others) if number not in kept]
        room = settings.cap - len(kept)
    if len(pool) > room:
        pool = ticket.rng(f"{role}-window").sample(pool, room)
    return _make_window(ticket, [*kept, *pool])


def _make_window(ticket: Ticket, node_ids: Iterable[int]) -> Window:
    return Window(ticket.parent, ticket.tree.root, tuple(ticket.tree.in_landing_order(node_ids)))


# -- entries --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One node of a window for templates. ``source`` is None if the prompt prints it elsewhere."""

    title: str
    advice: str
    source: str | None
    source_place: str
    log: str
    result: str
    profile: str


def make_entry(node: Node, window: Window, settings: WindowSettings) -> Entry:
    """Make the entry of one node for a prompt."""
    place = "the task's file above" if node.id == ROOT_ID else "the latest attempt above"
    title = f"Attempt {node.id}"
    if node.id == ROOT_ID:
        title = "The task's own Model, the reference"
    elif node.id == window.selected.id:
        title += ", the latest"
    return Entry(
        title=title,
        advice=node.plan.advice if node.plan else "",
        source=None if node.id in (ROOT_ID, window.selected.id) else node.source,
        source_place=place,
        log=_shorten(node.report.log, settings.log_characters),
        result=_format_result(node, window.root),
        profile=(node.report.profile or "") if settings.profile else "",
    )


def _format_result(node: Node, root: Node) -> str:
    if node.runtime_ms is None:
        rule = f", rule {node.report.rule}" if node.report.rule else ""
        return f"failed ({node.report.outcome.replace('_', ' ')}{rule})."
    text = f"correct, {node.runtime_ms:.4g} ms"
    if node.id == root.id or not root.runtime_ms or not node.runtime_ms:
        return f"{text}."
    return (
        f"{text}, {root.runtime_ms / node.runtime_ms:.2f} times the speed of the reference ({root.runtime_ms:.4g} ms)."
    )


def _shorten(text: str, limit: int) -> str:
    """Cut out the middle: compilers state the error first, tracebacks last."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit - limit // 2], text[len(text) - limit // 2 :]
    return f"{head}\n[... {len(text) - limit} characters left out ...]\n{tail}" if limit else ""
