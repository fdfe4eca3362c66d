"""Records of a run: tickets, calls, spending, endings, finals and events."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, field
from typing import Any

from stark.core.chat import Message, Reply, Usage
from stark.core.steps import Step, Work
from stark.core.task import Task
from stark.core.tree import Node, Role, Tree
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import Score

# -- one attempt ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InFlight:
    """An attempt in flight when another one began. ``idea`` is empty if it had no plan yet.

    ``sibling`` counts the children of its parent, finished or in flight, when it began itself.
    """

    number: int
    parent_id: int
    sibling: int
    idea: str = ""


@dataclass(frozen=True)
class Ticket:
    """An attempt that has begun: the node to build upon, the tree at that moment, and what was in flight."""

    number: int
    parent: Node
    tree: Tree
    seed: int | str
    in_flight: tuple[InFlight, ...] = ()

    @property
    def sibling(self) -> int:
        """The number of children of the parent, finished or in flight, when the attempt began."""
        return len(self.tree.children(self.parent.id)) + len(self.rivals)

    @property
    def rivals(self) -> tuple[InFlight, ...]:
        """The attempts in flight that build on the same node."""
        return tuple(other for other in self.in_flight if other.parent_id == self.parent.id)

    def rng(self, purpose: str) -> random.Random:
        """Return a generator that depends only on (seed, attempt, purpose): a resumed attempt draws the same."""
        return random.Random(f"{self.seed}/{self.number}/{purpose}")


# -- what happened --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spend:
    """Tokens and money, spent or reserved."""

    tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: Spend) -> Spend:
        return Spend(self.tokens + other.tokens, self.usd + other.usd)


@dataclass(frozen=True)
class RunRecord:
    """All that is needed to describe a run and to resume it."""

    id: str
    created_at: str
    task: Task
    given: str | None
    settings: dict[str, Any]
    templates: dict[str, str]
    versions: dict[str, str]
    device: DeviceFacts
    labels: dict[str, str] = field(default_factory=dict)  # given by a benchmark

    @property
    def kind(self) -> Kind:
        """A run without labels is a search."""
        return Kind(self.labels.get("kind", Kind.SEARCH))

    @property
    def method(self) -> str:
        """The method's label in tables, with the switch that changes it."""
        if system := self.labels.get("system"):
            return system
        switch = self.labels.get("switch")
        return f"{self.settings['method']} ({switch})" if switch else str(self.settings["method"])


class Kind(enum.StrEnum):
    """Kind of a run in a benchmark: a search, or given sources that are only judged."""

    SEARCH = "search"
    BASELINES = "baselines"  # eager and torch.compile
    RESCORED = "rescored"  # the winner of a search, by the other score
    JUDGED = "judged"  # kernels of another tool


class EndReason(enum.StrEnum):
    """Reason why a run ended. The values are stored."""

    DONE = "attempts"  # it made all its attempts
    BOUND = "bound"  # the best is as fast as its bound allows
    PLATEAU = "plateau"  # several attempts brought no gain
    TOKENS = "tokens"
    MONEY = "money"
    WALL_TIME = "wall time"
    STOPPED = "stopped"
    FAULT = "fault"  # the machinery failed
    BROKEN_TASK = "task"
    DEGENERATE_TASK = "degenerate"  # the task's check accepts answers that compute nothing

    @property
    def is_limit(self) -> bool:
        """True for a limit on tokens, money or time."""
        return self in (EndReason.TOKENS, EndReason.MONEY, EndReason.WALL_TIME)

    @property
    def meaning(self) -> str:
        """The reason in words."""
        return f"budget exhausted: {self}" if self.is_limit else _MEANINGS[self]


_MEANINGS = {
    EndReason.DONE: "done",
    EndReason.BOUND: "done: the best has reached the share of the bound that was asked for",
    EndReason.PLATEAU: "done: the last attempts brought no gain",
    EndReason.DEGENERATE_TASK: "not searched: the task tests nothing",
    EndReason.BROKEN_TASK: "not searched: the task does not work here",
    EndReason.FAULT: "infrastructure fault, to be tried again",
    EndReason.STOPPED: "stopped, can be resumed",
}


@dataclass(frozen=True)
class Ending:
    """Why a run ended, with details for the user."""

    reason: EndReason
    message: str = ""


# Put under a drop-in, so that the judge builds its kernel before the calls. A user's first call builds it otherwise.
# The names are those of the drop-in's template.
_BUILD_FIRST = """

with _own_names():
    _run_source("kernel", KERNEL)
"""


def judged_source(drop_in: str) -> str:
    """Return the source that is judged for a drop-in."""
    return drop_in + _BUILD_FIRST


@dataclass(frozen=True)
class DropIn:
    """A winner as a file that can be put in its model's place, and the report on that file."""

    source: str
    report: EvalReport

    @property
    def holds(self) -> bool:
        """True if the file computes what the model computes, also after its weights have changed."""
        labels = self.report.labels
        interface = labels.interface if labels else None
        return self.report.timing is not None and interface is not None and interface.follows_weights is not False


@dataclass(frozen=True)
class Final:
    """The final check of a winner: rebuilt with torch's own toolchain, measured by both scores in turns with the
    reference."""

    node_id: int
    score: Score  # the one that decides
    verified: EvalReport
    kernelbench: EvalReport
    drop_in: DropIn | None = None

    @property
    def report(self) -> EvalReport:
        """The report by the deciding score."""
        return self.verified if self.score is Score.VERIFIED else self.kernelbench

    @property
    def holds(self) -> bool:
        return self.report.timing is not None

    @property
    def speedup_interval(self) -> tuple[float, float] | None:
        """The speedup over the reference, as an interval with 99 % confidence."""
        return self.report.speedup_interval


@dataclass(frozen=True)
class AttemptAccount:
    """The calls of one attempt and their cost. ``is_waiting`` is true while the reply to a call is open."""

    number: int
    calls: int
    spent: Spend
    is_waiting: bool


@dataclass(frozen=True)
class RoleUsage:
    """Totals of the calls of one role; money is None if the price of any call is not known."""

    calls: int
    usage: Usage
    usd: float | None
    duration_s: float


@dataclass(frozen=True)
class TicketRecord:
    """A stored ticket: its tree is the first ``visible`` nodes that landed."""

    number: int
    parent_id: int
    visible: int
    in_flight: tuple[InFlight, ...] = ()


@dataclass(frozen=True)
class Call:
    """A journalled call of a model: the whole prompt, the raw reply and the cost."""

    number: int
    index: int
    role: Role
    model: str
    messages: tuple[Message, ...]
    form: str
    window: tuple[int, ...]
    reply: Reply
    started_at: str
    duration_s: float


# -- news of a run in progress ------------------------------------------------------------------------------------


class EventKind(enum.StrEnum):
    """Kind of an event; the fields it fills besides ``spent`` stand next to it."""

    BEGUN = "begun"  # number; node: the parent
    ASKING = "asking"  # number, step; text: the role
    EVALUATING = "evaluating"  # number, work, step: once for each step that the evaluator reports
    CONFIRMING = "confirming"  # number: the node of the winner
    CONFIRMED = "confirmed"  # number, final
    LANDED = "landed"  # number, node
    CUT_SHORT = "cut short"  # number: the attempt is left for a resume
    NOTE = "note"  # text
    ENDED = "ended"  # ending; text: the reason


@dataclass(frozen=True)
class Event:
    """News for the listener of a run. ``run`` is its id."""

    kind: EventKind
    number: int | None = None
    node: Node | None = None
    text: str = ""
    spent: Spend = field(default_factory=Spend)
    run: str = ""
    work: Work = Work.ATTEMPT
    step: Step | None = None
    final: Final | None = None
    ending: Ending | None = None
