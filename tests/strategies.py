"""Hypothesis strategies that several suites share."""

from __future__ import annotations

from hypothesis import strategies as st

from stark.core.tree import ROOT_ID, Attempt, Node, Plan, Role, Tree
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing

FAILURES = [
    outcome
    for outcome in Outcome
    if outcome not in (Outcome.OK, Outcome.UNUSABLE_REPLY)  # an unusable reply is the node without source
]


def report(outcome: Outcome, runtime_ms: float = 1.0) -> EvalReport:
    """A report with that outcome, timed only where it is ok."""
    return EvalReport(outcome, timing=Timing((runtime_ms,)) if outcome is Outcome.OK else None, log=f"log: {outcome}")


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 14, ids_in_order: bool = False) -> Tree:
    """A tree with a correct root; nodes fail, lack a source, share a source, and land out of the order of their ids."""
    count = draw(st.integers(0, max_nodes))
    numbers = list(range(1, count + 1))
    tree = Tree()
    tree.add(Node(ROOT_ID, None, Attempt(Role.REFERENCE, "class Model: ...", report(Outcome.OK, draw(_runtimes)))))
    for number in numbers if ids_in_order else draw(st.permutations(numbers)):
        tree.add(draw(_nodes(number, parents=[node.id for node in tree if node.source is not None])))
    return tree


_runtimes = st.integers(1, 8).map(float)  # few values, so that ties happen


@st.composite
def _nodes(draw: st.DrawFn, number: int, parents: list[int]) -> Node:
    parent_id = draw(st.sampled_from(parents))
    kind = draw(st.sampled_from(["ok", "ok", "ok", "failed", "failed", "no source"]))
    if kind == "no source":
        return Node(number, parent_id, Attempt(Role.CODE, None, report(Outcome.UNUSABLE_REPLY)))
    text = draw(st.sampled_from([f"own {number}", "shared a", "shared b"]))
    outcome = Outcome.OK if kind == "ok" else draw(st.sampled_from(FAILURES))
    role = Role.DEBUG if kind == "failed" else Role.CODE
    return Node(number, parent_id, Attempt(role, text, report(outcome, draw(_runtimes)), plan=Plan(f"advice {number}")))
