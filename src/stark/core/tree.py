"""Tree memory: every candidate ever tried, with its plan, its source and its report.

Nodes are frozen and appended in the order in which they land. A ``Tree`` is therefore also its own history:
``tree.at(n)`` is the tree of the first ``n`` nodes, at no cost. A resumed attempt sees the same tree again.
"""

from __future__ import annotations

import enum
import sys
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Phases

ROOT_ID = 0


class Role(enum.StrEnum):
    """Maker of a node's source: an agent, the user (first nodes of a tree), or another tool."""

    PLAN = "plan"
    CODE = "code"
    DEBUG = "debug"
    SOLO = "solo"
    REFERENCE = "reference"
    GIVEN = "given"
    OTHER = "other"  # a tool that is not STARK


@dataclass(frozen=True)
class Plan:
    """A grounded instruction: advice, and the parent's source with the places to change marked.

    ``violations`` are the rules of the anchor check that the scaffold broke; grounded means none. ``idea`` is the
    advice in one line. ``bases`` are the nodes that the planner chose to build on; none leaves it to the policy.
    """

    advice: str
    scaffold: str | None = None
    violations: tuple[str, ...] = ()
    idea: str = ""
    bases: tuple[int, ...] = ()

    @property
    def grounded(self) -> bool:
        return self.scaffold is not None and not self.violations


@dataclass(frozen=True)
class Attempt:
    """A workflow's result for one ticket. ``source`` is None if the reply held none; such a node is never built upon.

    ``outside_share`` is the share of the change that fell outside the anchors. It is None if nothing was anchored, and
    for a child of the root, which is a new file.
    ``duplicate_of`` is the earlier node whose report it takes over, because the code is the same.
    """

    role: Role
    source: str | None
    report: EvalReport
    plan: Plan | None = None
    explanation: str = ""
    outside_share: float | None = None
    notes: tuple[str, ...] = ()
    duplicate_of: int | None = field(default=None, compare=False)  # a node keeps it as ``same_as``

    @property
    def base_id(self) -> int | None:
        """The node that a new plan chose to build on. A repair inherits its plan, but not this choice."""
        return self.plan.bases[0] if self.role is Role.CODE and self.plan and self.plan.bases else None


@dataclass(frozen=True)
class Node:
    """An attempt and its place in the tree.

    ``same_as`` names the earlier node whose report this node shares, because the sources are the same.
    """

    id: int
    parent_id: int | None
    attempt: Attempt
    same_as: int | None = None

    @property
    def role(self) -> Role:
        return self.attempt.role

    @property
    def source(self) -> str | None:
        return self.attempt.source

    @property
    def report(self) -> EvalReport:
        return self.attempt.report

    @property
    def plan(self) -> Plan | None:
        return self.attempt.plan

    @property
    def notes(self) -> tuple[str, ...]:
        return self.attempt.notes

    @property
    def failed(self) -> bool:
        return self.report.outcome is not Outcome.OK

    @property
    def runtime_ms(self) -> float | None:
        """The score, lower is better. None stands for the paper's +infinity."""
        return self.report.timing.median_ms if self.report.timing else None

    @property
    def judgement(self) -> Judgement:
        report = self.report
        label = self.notes[0] if self.notes else ""
        degenerate = report.degenerate or ""
        figures = (self.runtime_ms, report.duration_s if self.same_as is None else 0.0)  # a twin was not evaluated
        opponent_ms = report.opponent.median_ms if report.opponent else None
        phases_s = report.phases_s if self.same_as is None else None
        facts = (self.id, self.role, report.outcome)
        return Judgement(*facts, *figures, label, degenerate, report.built, opponent_ms, phases_s)


@dataclass(frozen=True)
class Judgement:
    """A node without its texts, for statistics.

    ``label`` is its first note, which names a given source. ``degenerate`` states why the task tests nothing.
    ``opponent_ms`` is the reference's time, measured in turns with this node.
    """

    id: int
    role: Role
    outcome: Outcome
    runtime_ms: float | None = None
    duration_s: float = 0.0
    label: str = ""
    degenerate: str = ""
    built: bool = True
    opponent_ms: float | None = None
    phases_s: Phases | None = None

    @property
    def compiled(self) -> bool:
        return self.built and self.outcome not in (Outcome.UNUSABLE_REPLY, Outcome.COMPILE_ERROR)


@dataclass
class _Log:
    """Memory that all views of one tree share."""

    landed: list[Node] = field(default_factory=list)
    position: dict[int, int] = field(default_factory=dict)  # id -> index in landed
    children: dict[int, list[int]] = field(default_factory=dict)  # id -> positions, ascending
    ranked: list[tuple[float, int]] = field(default_factory=list)  # (runtime, id) of every correct node, best first
    leaves: dict[int, Node] = field(default_factory=dict)  # nodes with source, in landing order
    good_children: dict[int, int] = field(default_factory=dict)
    pending: dict[int, int] = field(default_factory=dict)  # attempt number -> parent id
    by_source: dict[str, int] = field(default_factory=dict)


class Tree:
    """The growing tree, or a view of an earlier moment (``at``)."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._log = _Log()
        self._bound = sys.maxsize
        for node in nodes:
            self.add(node)

    def at(self, landed: int) -> Tree:
        """Return the tree of the first ``landed`` nodes."""
        view = Tree.__new__(Tree)
        view._log, view._bound = self._log, landed
        return view

    # -- growing: only the coordinator of a run calls these ------------------------------------------------------

    def begin(self, number: int, parent_id: int) -> None:
        """Record that an attempt on ``parent_id`` is in flight."""
        self._log.pending[number] = parent_id

    def add(self, node: Node) -> None:
        """Append a finished node."""
        log = self._log
        if node.id in log.position:
            raise ValueError(f"node {node.id} is already in the tree")
        if node.parent_id is not None and node.parent_id not in log.position:
            raise ValueError(f"node {node.id} has an unknown parent {node.parent_id}")
        log.pending.pop(node.id, None)
        log.position[node.id] = len(log.landed)
        log.landed.append(node)
        if node.source is not None:
            log.leaves[node.id] = node
        if node.parent_id is not None:
            log.children.setdefault(node.parent_id, []).append(log.position[node.id])
            log.leaves.pop(node.parent_id, None)
            log.good_children[node.parent_id] = log.good_children.get(node.parent_id, 0) + (not node.failed)
        if node.runtime_ms is not None:
            insort(log.ranked, (node.runtime_ms, node.id))
        if node.source is not None and node.id != ROOT_ID:  # the root holds Model, which is no candidate
            log.by_source.setdefault(node.source, node.id)

    # -- reading ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return min(len(self._log.landed), self._bound)

    def __iter__(self) -> Iterator[Node]:
        """Iterate over all nodes in landing order."""
        return iter(self._log.landed[: len(self)])

    def __contains__(self, node_id: int) -> bool:
        return self._log.position.get(node_id, self._bound) < self._bound

    def __getitem__(self, node_id: int) -> Node:
        if node_id not in self:
            raise KeyError(node_id)
        return self._log.landed[self._log.position[node_id]]

    def in_landing_order(self, node_ids: Iterable[int]) -> list[Node]:
        """Return these nodes, each once, in landing order."""
        landed, position = self._log.landed, self._log.position
        return [landed[place] for place in sorted({position[node_id] for node_id in node_ids})]

    @property
    def root(self) -> Node:
        return self[ROOT_ID]

    def children(self, node_id: int) -> list[Node]:
        """Return D(i), the finished children."""
        landed, places = self._log.landed, self._log.children.get(node_id, [])
        return [landed[place] for place in places[: bisect_left(places, self._bound)]]

    def siblings(self, node_id: int) -> list[Node]:
        """Return S(i) without i itself."""
        parent_id = self[node_id].parent_id
        return [] if parent_id is None else [child for child in self.children(parent_id) if child.id != node_id]

    def ancestors(self, node_id: int) -> Iterator[Node]:
        """Yield the parent, its parent, and so on up to the root."""
        parent_id = self[node_id].parent_id
        while parent_id is not None:
            yield self[parent_id]
            parent_id = self[parent_id].parent_id

    def is_within(self, node_id: int, top_id: int) -> bool:
        """True if a node belongs to the subtree of ``top_id``, or is ``top_id``."""
        return node_id == top_id or any(node.id == top_id for node in self.ancestors(node_id))

    def ranked(self) -> Iterator[Node]:
        """Yield every correct node including the root, fastest first."""
        return (self[node_id] for _, node_id in self._log.ranked if node_id in self)

    def leaders(self, count: int, outside: int) -> list[Node]:
        """Return the top r: the fastest correct nodes outside a subtree, without the root, no source twice."""
        found: list[Node] = []
        seen = {self[outside].source}
        for node in self.ranked():
            if len(found) == count:
                break
            if node.id != ROOT_ID and node.source not in seen and not self.is_within(node.id, outside):
                found.append(node)
                seen.add(node.source)
        return found

    @property
    def best(self) -> Node | None:
        """The fastest correct node that is not the root."""
        return next((node for node in self.ranked() if node.id != ROOT_ID), None)

    def twin(self, source: str) -> Node | None:
        """Return the first candidate with exactly this source."""
        node_id = self._log.by_source.get(source)
        return self[node_id] if node_id is not None and node_id in self else None

    # -- for policies, on the live tree ---------------------------------------------------------------------------

    def leaves(self) -> list[Node]:
        """Return nodes with source and no finished child, in landing order."""
        return list(self._log.leaves.values())

    def expandable(self) -> list[Node]:
        """Return every finished node with source, in landing order."""
        return [node for node in self if node.source is not None]

    def all_children_failed(self, node_id: int) -> bool:
        """True if every finished child failed, or there is none."""
        return self._log.good_children.get(node_id, 0) == 0

    def child_count(self, node_id: int) -> int:
        """Return the number of finished children."""
        return len(self._log.children.get(node_id, []))

    def pending_parents(self) -> list[int]:
        """Return the parent of each attempt in flight, once per attempt."""
        return list(self._log.pending.values())

    def pending_children(self, node_id: int) -> int:
        """Return the number of attempts in flight on a node."""
        return self.pending_parents().count(node_id)

    @property
    def in_flight(self) -> int:
        return len(self._log.pending)


NO_ATTEMPT = frozenset({Role.REFERENCE, Role.GIVEN})

NodeLike = TypeVar("NodeLike", Node, Judgement)


def attempts_of(nodes: Iterable[NodeLike]) -> list[NodeLike]:
    """Return the nodes without the reference and the user's own kernel."""
    return [node for node in nodes if node.role not in NO_ATTEMPT]
