"""The final check of a winner.

The search measures fast. The final check builds the winner with torch's own toolchain. It measures the winner again by
both scores, in turns with the reference on the same inputs.
"""

from __future__ import annotations

from dataclasses import replace

from stark.core.interfaces import Evaluator
from stark.core.records import Final
from stark.core.tree import ROOT_ID, Node, Tree
from stark_worker.protocol.request import Build, EvalRequest, Score

MAX_CONTENDERS = 3  # the fastest candidates that are checked until one holds


async def confirm_candidate(evaluator: Evaluator, request: EvalRequest, node_id: int) -> Final:
    """Run the final check. ``request`` is the search's own; its score decides."""
    final_request = replace(request, build=Build.STOCK, opponent_source=request.task_source)
    reports = {
        score: await evaluator.evaluate(replace(final_request, score=score, with_labels=score is Score.VERIFIED))
        for score in Score
    }
    return Final(node_id, request.score, reports[Score.VERIFIED], reports[Score.KERNELBENCH])


def list_contenders(tree: Tree) -> list[Node]:
    """List the fastest candidates, each source once."""
    found: dict[str | None, Node] = {}
    for node in tree.ranked():
        if node.id != ROOT_ID:
            found.setdefault(node.source, node)
        if len(found) == MAX_CONTENDERS:
            break
    return list(found.values())


def find_winner(tree: Tree, final: Final | None) -> Node | None:
    """Return the confirmed candidate, None if none was confirmed, and the fastest if there was no final check."""
    if final is None:
        return tree.best
    return tree[final.node_id] if final.holds else None
