"""Shows the tree of a run, or one node in full."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from rich.text import Text
from rich.tree import Tree as Branches

from stark.cli.terminal.run import show_final
from stark.cli.terminal.screen import (
    console,
    format_code,
    format_headline,
    format_name,
    format_title,
    format_verdict,
    print_full_width,
    show_facts,
)
from stark.core.bound import SpeedOfLight, tree_speed_of_light
from stark.core.records import Call, Final, RunRecord
from stark.core.tree import ROOT_ID, Node, Tree
from stark.evaluation.confirmation import find_winner
from stark.models.open import describe_model
from stark_worker.protocol import report_text
from stark_worker.protocol.report_text import strip_control_chars

MAX_DRAWN_DEPTH = 10


def show_tree(record: RunRecord, nodes: Sequence[Node], models: Sequence[str] = (), final: Final | None = None) -> None:
    """Show the tree with one line per node, the models, and the final check of the winner."""
    tree = Tree(nodes)
    if not tree:
        console.print(Text("The run has no node yet."))
        return
    level = tree.root.report.sandbox_level
    facts = [record.settings["method"], *map(describe_model, models), record.device.name]
    facts += [f"{level} sandbox"] if level else []
    console.print(Text.assemble((record.task.name, "bold"), f"  {', '.join(facts)}"))
    limit = tree_speed_of_light(tree)
    if limit is not None:
        console.print(Text(f"speed of light: {report_text.format_bound(limit.bound)}", "dim"))
    _draw_tree(tree, find_winner(tree, final), limit)
    if final is not None:
        show_final(final, format_name(final.node_id))


def _draw_tree(tree: Tree, best: Node | None, limit: SpeedOfLight | None) -> None:
    def label(node: Node) -> Text:
        mark = Text("  ★ best", "bold green") if best and node.id == best.id else Text()
        name = "root" if node.id == ROOT_ID else f"{format_name(node.id)} {node.role}"
        share = limit.share(node.runtime_ms) if limit else None
        reached = Text(f"  {report_text.format_share(share)}", "dim") if share is not None else Text()
        verdict = format_verdict(node, tree.root.runtime_ms)
        return Text.assemble(f"{name}  ", verdict, reached, mark, format_headline(node))

    below = [(node, node.parent_id) for node in tree if node.parent_id is not None]
    depth = {ROOT_ID: 0}
    for node, parent in below:
        depth[node.id] = depth[parent] + 1
    if max(depth.values()) > MAX_DRAWN_DEPTH:  # deeper trees would be cut off at the right
        console.print(label(tree.root))
        for node, parent in below:
            console.print(Text.assemble((f"{format_name(parent)} -> ", "dim"), label(node)))
        return
    branches = {ROOT_ID: Branches(label(tree.root), guide_style="dim")}
    for node, parent in below:
        branches[node.id] = branches[parent].add(label(node))
    if console.is_terminal:
        console.print(branches[ROOT_ID])
    else:
        print_full_width(branches[ROOT_ID])


def show_node(node: Node, parent: Node | None, calls: Sequence[Call]) -> None:
    """Show one node: prompts, replies, change and report."""
    console.print(format_title(f"Node {node.id} by {node.role}" + (f", child of {parent.id}" if parent else "")))
    console.print(format_verdict(node, None))
    for note in node.notes:
        console.print(Text(strip_control_chars(f"note: {note}"), "yellow"))
    if node.same_as is not None:
        console.print(Text(f"Same source as node {node.same_as}, so it has the same report."))
    show_facts(node.report)
    for call in calls:
        _show_call(call)
    if node.plan is not None:
        grounded = "grounded" if node.plan.grounded else f"not grounded: {'; '.join(node.plan.violations)}"
        console.print(format_title(f"Plan ({grounded})"), Text(strip_control_chars(node.plan.advice)))
        if node.plan.scaffold:
            console.print(format_title("Scaffold"), format_code(node.plan.scaffold))
    if node.source is not None:
        before = (parent.source or "") if parent else ""
        changed = difflib.unified_diff(before.splitlines(), node.source.splitlines(), "parent", "this", lineterm="")
        console.print(format_title("Change"), format_code("\n".join(changed), "diff"))
        if node.attempt.outside_share is not None:
            console.print(Text(f"{node.attempt.outside_share:.0%} of the change lies outside the anchors."))
    if node.report.log:
        console.print(format_title("Log"), Text(strip_control_chars(node.report.log)))


def _show_call(call: Call) -> None:
    usage, cost = call.reply.usage, call.reply.cost_usd
    price = "price not known" if cost is None else f"${cost:.4f}"
    window = ", ".join(map(str, call.window))
    console.print(
        format_title(f"Call {call.index}: {call.role} agent, {describe_model(call.model)}"),
        Text(
            f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out, {price}, "
            f"{call.duration_s:.1f} s; window: {window}",
            "dim",
        ),
    )
    for message in call.messages:
        console.print(Text(f"[{message.role}]", "bold dim"), Text(strip_control_chars(message.content), "dim"))
    reply = "\n".join(part for part in (call.reply.text, call.reply.arguments) if part)
    console.print(Text("[reply]", "bold"), Text(strip_control_chars(reply) or "(empty)"))
