"""Reads stored runs for an agent: the state, the tree, one node, and the files of a winner."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from stark.core.errors import StoreLocked, UsageError
from stark.core.records import Call, Ending, EndReason, Final, RunRecord, Spend
from stark.core.tree import ROOT_ID, Node, Role, Tree, attempts_of
from stark.evaluation.confirmation import find_winner
from stark.mcp.quoting import quote
from stark.mcp.results import JUDGE, format_error, summarise_final
from stark.mcp.roots import RUNS, Roots
from stark.mcp.searches import Search
from stark.store.connection import FILE_NAME
from stark.store.lock import refuse_if_held
from stark.store.lookup import only_run
from stark.store.open import open_store
from stark_worker.protocol import report_text
from stark_worker.protocol.errors import Outcome

ID = re.compile(r"[^/:]*[^/:.][^/:]*")  # no path
MODEL = "a chat model"
MAX_PROMPT_CHARACTERS = 100_000


@dataclass(frozen=True)
class Status:
    """The state of a run. ``state`` is starting, running, running elsewhere, ended, stopped or failed."""

    summary: str
    run: str
    folder: str
    state: str
    activity: str
    attempts: int
    correct_attempts: int
    best_node: int | None
    best_speedup: float | None
    is_winner_confirmed: bool
    is_surely_faster: bool
    tokens: int
    usd: float
    quoted_error: str


@dataclass(frozen=True)
class NodeLine:
    """One candidate of a tree. ``speedup`` is relative to the root, as the search measured it."""

    node: int
    parent: int | None
    made_by: Role
    outcome: Outcome
    median_ms: float | None
    speedup: float | None
    is_best: bool


@dataclass(frozen=True)
class NodeDetails:
    """One candidate in full."""

    quoted_plan: str
    quoted_source: str
    quoted_diff: str
    quoted_log: str
    quoted_notes: str


@dataclass(frozen=True)
class Shown:
    """A tree, with one node in full if it was asked for."""

    summary: str
    nodes: list[NodeLine]
    quoted_plans: str
    node: NodeDetails | None


@dataclass(frozen=True)
class StoredRun:
    """All that is read of a run at once."""

    record: RunRecord
    nodes: list[Node]
    final: Final | None
    ending: Ending | None
    spent: Spend

    @property
    def tree(self) -> Tree:
        return Tree(self.nodes)


def possible_folders(roots: Roots, run: str) -> list[Path]:
    """Return the folders that a run may mean, named by its id or its path."""
    by_id = [roots.resolve(str(root / RUNS / run)) for root in roots.folders] if ID.fullmatch(run) else []
    folders = [*by_id, roots.resolve(run)]
    for folder in folders:
        roots.resolve(str(folder / FILE_NAME))  # it may be a link that leads out of the roots
    return folders


def read_run(folder: Path) -> StoredRun:
    """Return a stored run. A folder without a store is an error that says so."""
    if not (folder / FILE_NAME).is_file():
        raise UsageError(f"There is no run in {folder}.", "Name the run that optimize returned, or its folder.")
    with closing(open_store(folder, write=False)) as store:
        record = only_run(store, folder)
        more = store.final(record.id), store.ending(record.id), store.spent(record.id)
        return StoredRun(record, store.nodes(record.id), *more)


def status_of(folder: Path, search: Search | None) -> Status:
    """Return the state of a run. It is read from the store, also while the run goes on."""
    state = _state_in_memory(search)
    error = format_error(search.error) if search and search.error else ""
    activity = search.activity.text if search else ""
    if search is not None and not _has_begun(folder):
        summary = f"{state.capitalize()}: {activity}." if not error else "The search failed before it began."
        return Status(summary, folder.name, str(folder), state, activity, 0, 0, None, None, False, False, 0, 0.0, error)
    stored = read_run(folder)
    state = state or _state_in_store(folder, stored.ending)
    return _status(folder, stored, state, activity, error)


def _has_begun(folder: Path) -> bool:
    try:
        return bool(read_run(folder).nodes)
    except UsageError:
        return False


def _status(folder: Path, stored: StoredRun, state: str, activity: str, error: str) -> Status:
    best = find_winner(stored.tree, stored.final)
    attempts = attempts_of(stored.nodes)
    speedup = _speedup(best, stored)
    interval = stored.final.speedup_interval if stored.final else None
    return Status(
        summary=_summarise(stored, state, best, speedup, len(attempts)),
        run=stored.record.id,
        folder=str(folder),
        state=state,
        activity=activity,
        attempts=len(attempts),
        correct_attempts=sum(not node.failed for node in attempts),
        best_node=best.id if best else None,
        best_speedup=speedup,
        is_winner_confirmed=stored.final is not None and stored.final.holds,
        is_surely_faster=interval is not None and interval[0] > 1.0,
        tokens=stored.spent.tokens,
        usd=round(stored.spent.usd, 4),
        quoted_error=error,
    )


def _summarise(stored: StoredRun, state: str, best: Node | None, speedup: float | None, attempts: int) -> str:
    budget = stored.record.settings["budget"]["attempts"]
    parts = [f"{state.capitalize()}: {attempts} of {budget} attempts made."]
    if best is None:
        parts.append("No correct kernel yet." if state.startswith(("running", "starting")) else "No kernel holds.")
    elif speedup is not None:
        parts.append(f"The best is node {best.id}, {speedup:.2f}x as fast as the reference.")
    if stored.final is not None:
        parts.append(summarise_final(stored.final))
    return " ".join(parts)


def _speedup(best: Node | None, stored: StoredRun) -> float | None:
    final = stored.final.report if stored.final and stored.final.holds else None
    if final and final.timing and final.opponent:
        return final.opponent.median_ms / final.timing.median_ms
    reference = stored.tree.root.runtime_ms if stored.nodes else None
    return reference / best.runtime_ms if best and best.runtime_ms and reference else None


def _state_in_memory(search: Search | None) -> str:
    if search is None:
        return ""
    if search.is_running:
        return "running" if _has_begun(search.folder) else "starting"
    return "failed" if search.error else "stopped" if search.work.cancelled() else "ended"


def _state_in_store(folder: Path, ending: Ending | None) -> str:
    try:
        refuse_if_held(folder)
    except StoreLocked:
        return "running elsewhere"
    return "stopped" if ending is None or ending.reason is EndReason.STOPPED else "ended"


def show_run(folder: Path, number: int | None, against: int | None) -> Shown:
    """Return the tree of a run, and one node with its change against its parent or another node."""
    stored = read_run(folder)
    if not stored.nodes:
        return Shown("The run has no node yet.", [], "", None)
    tree, best = stored.tree, find_winner(stored.tree, stored.final)
    root_ms = tree.root.runtime_ms
    lines = [_line(node, root_ms, best) for node in stored.nodes]
    plans = "\n".join(f"#{node.id}: {headline}" for node in stored.nodes if (headline := _headline(node)))
    details = None if number is None else _details(tree, _node(tree, number), against)
    found = f"{len(lines)} nodes; " + (f"the best is {best.id}." if best else "no correct kernel.")
    shown = "" if number is None else f" Node {number}: {report_text.format_verdict(tree[number].report, root_ms)}."
    return Shown(found + shown, lines, quote(plans, MODEL), details)


def _line(node: Node, root_ms: float | None, best: Node | None) -> NodeLine:
    speedup = root_ms / node.runtime_ms if root_ms and node.runtime_ms else None
    is_best = best is not None and node.id == best.id
    return NodeLine(node.id, node.parent_id, node.role, node.report.outcome, node.runtime_ms, speedup, is_best)


def _headline(node: Node) -> str:
    """Return the first line of the plan that a node was made from."""
    advice = node.plan.advice if node.plan and node.role is not Role.PLAN else ""
    return next((line.strip("# *")[:100] for line in advice.splitlines() if line.strip("# *")), "")


def _node(tree: Tree, number: int) -> Node:
    if number not in tree:
        known = ", ".join(str(node.id) for node in tree)
        raise UsageError(f"The run has no node {number}.", f"Its nodes are {known}.")
    return tree[number]


def _details(tree: Tree, node: Node, against: int | None) -> NodeDetails:
    other = against if against is not None else node.parent_id
    before = (_node(tree, other).source or "") if other is not None else ""
    names = f"node {other}", f"node {node.id}"
    changed = difflib.unified_diff(before.splitlines(), (node.source or "").splitlines(), *names, lineterm="")
    return NodeDetails(
        quoted_plan=quote(node.plan.advice if node.plan else "", MODEL),
        quoted_source=quote(node.source or "", MODEL),
        quoted_diff=quote("" if other is None else "\n".join(changed), MODEL),
        quoted_log=quote(node.report.log, JUDGE),
        quoted_notes=quote("\n".join(node.notes), MODEL),
    )


def format_tree(folder: Path) -> str:
    """Return the tree of a run as text, one line for each node."""
    shown = show_run(folder, None, None)
    lines = [_format_line(line) for line in shown.nodes]
    return "\n".join([shown.summary, *lines, *([shown.quoted_plans] if shown.quoted_plans else [])])


def _format_line(line: NodeLine) -> str:
    parent = "" if line.parent is None else f", child of {line.parent}"
    speed = "" if line.speedup is None or line.node == ROOT_ID else f", {line.speedup:.2f}x"
    verdict = line.outcome.value.replace("_", " ") if line.median_ms is None else f"{line.median_ms:.3f} ms{speed}"
    return f"node {line.node} ({line.made_by}{parent}): {verdict}{', best' if line.is_best else ''}"


def format_source(folder: Path, number: int) -> str:
    """Return the source of a node."""
    return quote(_node(read_run(folder).tree, number).source or "The node has no source.", MODEL, MAX_PROMPT_CHARACTERS)


def format_prompts(folder: Path, number: int) -> str:
    """Return the prompts that a node was made from, and the replies."""
    stored = read_run(folder)
    _node(stored.tree, number)
    with closing(open_store(folder, write=False)) as store:
        calls = store.calls(stored.record.id, number)
    if not calls:
        return f"No model was asked for node {number}."
    conversations = "\n".join(text for call in calls for text in _conversation(call))
    return quote(conversations, "prompts and replies of chat models", MAX_PROMPT_CHARACTERS)


def _conversation(call: Call) -> Iterator[str]:
    for message in call.messages:
        yield f"--- {message.role} ---\n{message.content}"
    yield f"--- reply of the {call.role} agent ---\n{call.reply.arguments or call.reply.text}"
