"""The tree and the kernel of each task as HTML that needs no script. All stored text is escaped."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import closing
from html import escape
from pathlib import Path

from stark.core.bound import SpeedOfLight, stored_speed_of_light
from stark.core.interfaces import StoreReader
from stark.core.tree import ROOT_ID, Node
from stark.report.tasks.findings import TaskFinding
from stark.store.open import open_store
from stark_worker.protocol.report_text import format_verdict, strip_control_chars

Anchor = tuple[str, str]  # the anchors of a task's kernel and tree
MAX_TREE = 400  # nodes that are drawn


def anchors(found: Sequence[TaskFinding]) -> list[Anchor]:
    """Return the anchors of each task's section."""
    return [(f"kernel-{place}", f"tree-{place}") for place, _ in enumerate(found, 1)]


def format_sections(folder: Path, found: Sequence[TaskFinding]) -> str:
    """Return one section per task: its best run's tree, its kernel, and the change to the reference."""
    with closing(open_store(folder, write=False)) as store:
        parts = [_format_task(store, each, *ids) for each, ids in zip(found, anchors(found), strict=True)]
    return "\n".join(parts)


def _format_task(store: StoreReader, found: TaskFinding, kernel_id: str, tree_id: str) -> str:
    nodes = store.nodes(found.best.run_id)
    by_id = {node.id: node for node in nodes}
    best, root = by_id.get(found.node) if found.node is not None else None, by_id.get(ROOT_ID)
    parts = [f"<h3>{escape(found.task)}, {escape(found.best.method)}</h3>"]
    lines = "\n".join(_draw_tree(nodes[:MAX_TREE], found.node, stored_speed_of_light(nodes)))
    more = f"\n... and {len(nodes) - MAX_TREE} more" if len(nodes) > MAX_TREE else ""
    parts.append(_details(tree_id, f"Tree of {len(nodes)} nodes", f"<pre>{lines}{more}</pre>"))
    if best is not None and best.source is not None:
        parts.append(_details(kernel_id, f"Kernel #{best.id}", f"<pre>{_escape(best.source)}</pre>"))
        before = root.source if root and root.source else ""
        parts.append(_details("", "Change to the reference", f"<pre>{_format_diff(before, best.source)}</pre>"))
        parent = by_id.get(best.parent_id) if best.parent_id else None
        if parent is not None and parent.source:
            change = _format_diff(parent.source, best.source)
            parts.append(_details("", f"Change to its parent #{parent.id}", f"<pre>{change}</pre>"))
    return "\n".join(parts)


def _details(anchor: str, title: str, content: str) -> str:
    """Return a part that opens on a click. A link opens it too, because the anchor is within."""
    name = f' id="{anchor}"' if anchor else ""
    return f"<details><summary>{escape(title)}</summary><div{name}>{content}</div></details>"


def _escape(text: str) -> str:
    return escape(strip_control_chars(text.replace("\t", "    ")))


def _draw_tree(nodes: Sequence[Node], best: int | None, light: SpeedOfLight | None) -> Iterator[str]:
    """Yield a line for each node, children below their parent."""
    children: dict[int | None, list[Node]] = {}
    for node in nodes:
        children.setdefault(node.parent_id, []).append(node)
    root_ms = nodes[0].runtime_ms if nodes else None
    stack = [(node, "") for node in reversed(children.get(None, []))]
    while stack:
        node, indent = stack.pop()
        name = "root" if node.id == ROOT_ID else f"#{node.id} {node.role}"
        verdict = format_verdict(node.report, None if node.id == ROOT_ID else root_ms)
        advice = node.plan.advice.strip().partition("\n")[0][:120] if node.plan else ""
        kind = "failed" if node.failed else "ok"
        star = " ★" if node.id == best else ""
        share = light.describe(node.runtime_ms) if light else ""
        reached = f"  {escape(share)}" if share else ""
        words = f'<b class="{kind}">{_escape(verdict)}</b>{reached}{star}'
        yield f"{indent}{escape(name)}  {words}  <i>{_escape(advice)}</i>"
        stack += [(child, f"{indent}    ") for child in reversed(children.get(node.id, []))]


def _format_diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=3)
    kinds = {"+": "ins", "-": "del"}
    return "\n".join(
        f"<{tag}>{_escape(line)}</{tag}>" if (tag := kinds.get(line[:1])) else _escape(line) for line in lines
    )
