"""The architecture on one page: what the parts hand to each other, and the five points where a part can be replaced.

    policy     where to grow        Policy.select(tree, rng) -> Node | None
    workflow   how to propose       Workflow.attempt(ticket, desk) -> Attempt
    chat model who is asked         ChatModel.reply(messages, form) -> Reply
    evaluator  how good it is       Evaluator.evaluate(request) -> EvalReport
    store      what happened        Store.begin / reserve / journal / finish / nodes / runs

The program is ``ask -> attempt -> tell`` and stands in ``run.py``. Each point has a suite in ``tests/conformance`` that
a third party can run on its own class.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from stark.task import Task
from stark.tree import Judgement, Node, Plan, Role, Tree
from stark_worker.protocol import DeviceFacts, EvalReport, EvalRequest, Score

# -- what is said to a chat model, and what comes back --------------------------------------------------------------


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class ReplyForm:
    """The answer a role must give: named texts. Sent as a tool where there are tools, as fenced blocks otherwise."""

    name: str
    description: str
    fields: dict[str, str]  # name -> what it is for


class Finish(enum.StrEnum):
    """Why a model stopped."""

    COMPLETE = "complete"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    PROMPT_TOO_LONG = "prompt_too_long"


class ReplyFault(enum.StrEnum):
    """What makes a reply unusable."""

    EMPTY = "empty"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    PROMPT_TOO_LONG = "prompt_too_long"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    NO_CODE = "no_code"
    TWO_ANSWERS = "two_answers"


@dataclass(frozen=True)
class Usage:
    """Tokens of one call. Reasoning counts as output; cached input counts as input and is told apart beside it."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True)
class Reply:
    """A model's answer, not yet parsed: it is journalled first.

    ``arguments`` is the raw JSON of the structured answer, None when the model wrote plain text. ``notes`` say what the
    model was not given as asked, such as a refused temperature.
    """

    text: str = ""
    arguments: str | None = None
    finish: Finish = Finish.COMPLETE
    usage: Usage = Usage()
    cost_usd: float | None = None
    model: str = ""
    notes: tuple[str, ...] = ()


class ChatModel(Protocol):
    """Made from the ``RoleSettings`` of one role: ``Class(settings)``.

    A fault that may pass and costs nothing is retried inside. What remains is raised: ``ModelRefused`` or
    ``ModelUnavailable`` when nothing was charged, ``ReplyLost`` when that is not known. A reply that is merely bad is
    returned.
    """

    name: str

    @property
    def takes_temperature(self) -> bool:
        """Whether the temperature of the settings reaches the model, as far as is known."""

    def cost_usd(self, usage: Usage) -> float | None:
        """The price of that many tokens; None when the price is not known."""

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        """One answer."""


# -- one attempt ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ticket:
    """An attempt that has been begun: which node to build upon, and the tree as it was then."""

    number: int
    parent: Node
    tree: Tree
    seed: int

    def rng(self, purpose: str) -> random.Random:
        """A generator that depends on (seed, attempt, purpose) alone, so that a resumed attempt draws the same."""
        return random.Random(f"{self.seed}/{self.number}/{purpose}")


@dataclass(frozen=True)
class Attempt:
    """What a workflow made of a ticket."""

    role: Role
    source: str | None
    report: EvalReport
    plan: Plan | None = None
    explanation: str = ""
    outside_share: float | None = None
    notes: tuple[str, ...] = ()


class Desk(Protocol):
    """What a workflow may use during one attempt. Asking is journalled and paid for behind it."""

    def takes_temperature(self, role: Role) -> bool:
        """Whether that role's model samples at the temperature it was given."""

    async def ask(self, role: Role, messages: Sequence[Message], form: ReplyForm, window: Iterable[int]) -> Reply:
        """One reply of that role's model; ``window`` names the nodes that were shown."""

    async def evaluate(self, source: str) -> EvalReport:
        """The evaluator's report on a candidate; one with the same source as an earlier one shares its report."""


class Workflow(Protocol):
    """How to propose: turns a ticket into an attempt. Holds no state between attempts."""

    async def attempt(self, ticket: Ticket, desk: Desk) -> Attempt:
        """One attempt, from asking to the report."""


class Policy(Protocol):
    """Where to grow. Made from ``SearchSettings``: ``Class(settings)``."""

    def select(self, tree: Tree, rng: random.Random) -> Node | None:
        """A finished node with source, or None to wait until something lands.

        None is only allowed while attempts are in flight.
        """


# -- how good it is -------------------------------------------------------------------------------------------------


class Evaluator(Protocol):
    """How good it is. Made from ``EvaluationSettings``: ``Class(settings)``; an asynchronous context manager.

    A candidate's fault is an outcome in the report. A fault of the machinery is retried inside; what remains is raised
    as an ``EvaluatorError``, spends no budget and leaves the run resumable.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def device(self) -> DeviceFacts:
        """What candidates are measured on."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        """Compile, check and time one candidate."""


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
    """All that is needed to say what a run was, and to go on with it."""

    id: str
    created_at: str
    task: Task
    given: str | None
    settings: dict[str, Any]
    templates: dict[str, str]
    versions: dict[str, str]
    device: DeviceFacts
    labels: dict[str, str] = field(default_factory=dict)  # what a benchmark knows it by


class Kind(enum.StrEnum):
    """What a run of a benchmark is: a search, or given sources that are only judged."""

    SEARCH = "search"
    BASELINES = "baselines"  # eager and torch.compile
    RESCORED = "rescored"  # the winner of a search by the rules that did not drive it
    JUDGED = "judged"  # kernels another tool has made


# Why a run ended, where no limit on tokens, money or time is named: it made all its attempts, somebody stopped it, the
# machinery had a fault, its task does not work, or its task tests nothing.
DONE, STOPPED, FAULT, BROKEN_TASK, DEGENERATE_TASK = "attempts", "stopped", "fault", "task", "degenerate"


@dataclass(frozen=True)
class Ending:
    """Why a run ended: its reason in a word, and what there is to say about it."""

    reason: str
    message: str = ""


@dataclass(frozen=True)
class Final:
    """The last word on a winner: built the stock way and judged anew by both scores, in turns with the reference."""

    node_id: int
    score: Score  # the one that decides
    verified: EvalReport
    kernelbench: EvalReport

    @property
    def report(self) -> EvalReport:
        """What decides."""
        return self.verified if self.score is Score.VERIFIED else self.kernelbench

    @property
    def holds(self) -> bool:
        return self.report.timing is not None

    @property
    def speedup_interval(self) -> tuple[float, float] | None:
        """Between which factors it is faster than the reference, with 99 % confidence."""
        timing, rival = self.report.timing, self.report.rival
        return rival.ratio_to(timing) if timing and rival else None


@dataclass(frozen=True)
class RoleUsage:
    """What the calls of one role came to; money is None where the price of any of them is not known."""

    calls: int
    usage: Usage
    usd: float | None
    duration_s: float


@dataclass(frozen=True)
class TicketRecord:
    """A ticket as it is stored: the visible tree is the first ``visible`` nodes that landed."""

    number: int
    parent_id: int
    visible: int


@dataclass(frozen=True)
class Call:
    """One call of a model as it is journalled: the whole prompt, the raw reply and what both cost."""

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


class Store(Protocol):
    """What happened. One process writes, any number may read meanwhile.

    ``begin``, ``reserve``, ``journal`` and ``finish`` are each one durable transaction. ``finish`` is atomic and
    idempotent. A reservation that was never settled by ``journal`` (the process died) stays spent in full, because
    nobody knows what the provider charged.
    """

    def create(self, run: RunRecord) -> None:
        """Add a run."""

    def amend(self, run_id: str, settings: dict[str, Any]) -> None:
        """Replace the effective settings of a run, to extend its budget for example; its history keeps the old ones."""

    def runs(self) -> list[RunRecord]:
        """All runs, oldest first."""

    def begin(self, run_id: str, ticket: TicketRecord) -> None:
        """Note that an attempt has begun."""

    def reserve(self, run_id: str, number: int, index: int, worst: Spend) -> int:
        """Set money and tokens aside before a call; returns the reservation's id."""

    def journal(self, run_id: str, reservation: int, call: Call) -> None:
        """Keep a reply, before anything looks into it, and settle its reservation at what it really cost."""

    def release(self, reservation: int) -> None:
        """Give a reservation back: the call was refused and nothing was charged."""

    def finish(self, run_id: str, node: Node) -> None:
        """Add a finished node to the tree."""

    def clock(self, run_id: str, seconds: float) -> None:
        """Add to the time a run has taken."""

    def end(self, run_id: str, ending: Ending) -> None:
        """Note why a run ended. One that is taken up again ends again; the last ending counts."""

    def confirm(self, run_id: str, final: Final) -> None:
        """Keep what became of a contender; of several the last one is the last word on the winner."""

    def finals(self, run_id: str) -> list[Final]:
        """What became of contenders, in the order it was kept."""

    def final(self, run_id: str) -> Final | None:
        """The last word on the winner, where it was spoken."""

    def nodes(self, run_id: str) -> list[Node]:
        """Finished nodes in landing order."""

    def judgements(self, run_id: str) -> list[Judgement]:
        """Finished nodes in landing order without their texts, which a report on many runs has no time to read."""

    def unfinished(self, run_id: str) -> list[TicketRecord]:
        """Attempts that began and never finished, lowest number first."""

    def given_back(self, run_id: str) -> set[int]:
        """Attempts of which a reservation was released: a call that was refused, or never answered."""

    def calls(self, run_id: str, number: int | None = None) -> list[Call]:
        """Journalled calls in order, of one attempt or of all."""

    def spent(self, run_id: str) -> Spend:
        """Settled calls at their cost and open reservations at their worst."""

    def seconds(self, run_id: str) -> float:
        """The time a run has taken so far."""

    def ending(self, run_id: str) -> Ending | None:
        """Why a run ended last; None where nobody noted it."""

    def usage(self, run_id: str) -> dict[Role, RoleUsage]:
        """What the journalled calls of each role came to. Never reads a prompt."""

    def models(self, run_id: str) -> list[str]:
        """Who answered the journalled calls, by name, none twice."""

    def close(self) -> None:
        """Release the file."""


# -- what a view is told while a run goes on --------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """Something a person watching would want to know."""

    kind: Literal["begun", "asking", "evaluating", "landed", "note", "ended"]
    number: int | None = None
    node: Node | None = None
    text: str = ""
    spent: Spend = field(default_factory=Spend)


Listener = Callable[[Event], None]
