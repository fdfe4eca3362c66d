"""The last word on a winner.

What the search believed of it was measured fast. Before it is reported it is built exactly as torch builds it and
judged anew by both scores, in turns with the reference on the same inputs.
"""

from __future__ import annotations

from dataclasses import replace

from stark.core.interfaces import Evaluator
from stark.core.records import Final
from stark.core.tree import ROOT_ID, Node, Tree
from stark_worker.protocol.request import Build, EvalRequest, Score

CONTENDERS = 3  # how many of the fastest are tried until one holds


async def hold_final(evaluator: Evaluator, request: EvalRequest, node_id: int) -> Final:
    """Judge a winner; ``request`` is what the search asks about a candidate, and its score decides."""
    asked = replace(request, build=Build.STOCK, rival_source=request.task_source)
    reports = {
        score: await evaluator.evaluate(replace(asked, score=score, labelled=score is Score.VERIFIED))
        for score in Score
    }
    return Final(node_id, request.score, reports[Score.VERIFIED], reports[Score.KERNELBENCH])


def contenders(tree: Tree) -> list[Node]:
    """The fastest few candidates, no source twice."""
    found: dict[str | None, Node] = {}
    for node in tree.ranked():
        if node.id != ROOT_ID:
            found.setdefault(node.source, node)
        if len(found) == CONTENDERS:
            break
    return list(found.values())


def winner(tree: Tree, final: Final | None) -> Node | None:
    """The candidate to report: the one that was confirmed, none where none was, the fastest before anybody looked."""
    if final is None:
        return tree.best
    return tree[final.node_id] if final.holds else None
