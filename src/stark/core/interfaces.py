"""The architecture on one page: the five points at which a part can be replaced.

    policy       where to grow      Policy.select(tree, rng) -> Node | None
    workflow     how to propose     Workflow.attempt(ticket, context) -> Attempt
    chat model   the agents' voice  ChatModel.reply(messages, form) -> Reply
    evaluator    how good it is     Evaluator.evaluate(request) -> EvalReport
    store        what happened      Store.begin / reserve / journal / finish / nodes / runs

The program is ``ask -> attempt -> tell``; see ``stark.run.loop``. Each point has a suite in ``tests/conformance`` that
a third party can run on its own class.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from stark.core.chat import Message, Reply, ReplyForm, Usage
from stark.core.records import (
    AttemptAccount,
    Call,
    Ending,
    Event,
    Final,
    RoleUsage,
    RunRecord,
    Spend,
    Ticket,
    TicketRecord,
)
from stark.core.tree import Attempt, Judgement, Node, Role, Tree
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import EvalRequest

Listener = Callable[[Event], None]


class ChatModel(Protocol):
    """The chat model of one role. Made from its ``RoleSettings``: ``Class(settings)``.

    The model itself retries a passing fault that costs nothing. It raises the rest: ``ModelRefused`` or
    ``ModelUnavailable`` if nothing was charged, ``ReplyLost`` if that is not known. It returns a bad reply.
    """

    name: str

    @property
    def takes_temperature(self) -> bool:
        """True if the temperature of the settings reaches the model, as far as is known."""

    def cost_usd(self, usage: Usage) -> float | None:
        """Return the price of these tokens, or None if the price is not known."""

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        """Return one answer."""


@runtime_checkable
class PlacedModel(Protocol):
    """A chat model that answers by the place of a call in a run, as a replay does."""

    def at(self, number: int, nth: int) -> ChatModel:
        """Return the model for the ``nth`` call of its role in one attempt."""


class AttemptContext(Protocol):
    """Access to models and evaluator during one attempt. Calls are journalled and charged to the budget."""

    def takes_temperature(self, role: Role) -> bool:
        """True if the role's model samples at the temperature of its settings."""

    async def ask(self, role: Role, messages: Sequence[Message], form: ReplyForm, window: Iterable[int]) -> Reply:
        """Return one reply of the role's model; ``window`` names the nodes that the prompt shows."""

    def announce(self, idea: str) -> None:
        """Let attempts that begin from now on know what this one tries."""

    async def evaluate(self, source: str) -> EvalReport:
        """Return the report on a candidate. Identical sources share one report."""


class Workflow(Protocol):
    """Turns a ticket into an attempt. Holds no state between attempts."""

    async def attempt(self, ticket: Ticket, context: AttemptContext) -> Attempt:
        """Make one attempt, from the first prompt to the report."""


class Policy(Protocol):
    """Chooses the node to build upon. Made from ``SearchSettings``: ``Class(settings)``."""

    def select(self, tree: Tree, rng: random.Random) -> Node | None:
        """Return a finished node with source, or None to wait until an attempt lands.

        None is only allowed while attempts are in flight.
        """


class Evaluator(Protocol):
    """Evaluates candidates. Made from ``EvaluationSettings``: ``Class(settings)``; an asynchronous context manager.

    A candidate's fault is an outcome in the report. The evaluator retries faults of the machinery and raises what
    remains as an ``EvaluatorError``, which spends no budget and leaves the run resumable.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def device(self) -> DeviceFacts:
        """Return facts on the device that candidates are measured on."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        """Compile, check and time one candidate."""


class Store(Protocol):
    """The memory of a run, which reads it back when it resumes. One process writes; any number may read meanwhile.

    ``begin``, ``reserve``, ``journal`` and ``finish`` are each one durable transaction. ``finish`` is atomic and
    idempotent. A reservation that ``journal`` never settled, because the process died, stays spent in full: the
    provider may have charged it.
    """

    def create(self, run: RunRecord) -> None:
        """Add a run."""

    def amend(self, run_id: str, settings: dict[str, Any]) -> None:
        """Replace the effective settings of a run; its history keeps the old ones."""

    def runs(self) -> list[RunRecord]:
        """Return all runs, oldest first."""

    def begin(self, run_id: str, ticket: TicketRecord) -> None:
        """Record that an attempt has begun."""

    def reserve(self, run_id: str, number: int, index: int, worst: Spend) -> int:
        """Reserve money and tokens for a call; return the reservation's id."""

    def journal(self, run_id: str, reservation: int, call: Call) -> None:
        """Keep a reply before it is parsed, and settle its reservation at the actual cost."""

    def release(self, reservation: int) -> None:
        """Cancel a reservation: the call was refused and nothing was charged."""

    def finish(self, run_id: str, node: Node) -> None:
        """Add a finished node to the tree."""

    def clock(self, run_id: str, seconds: float) -> None:
        """Add to the time a run has taken."""

    def end(self, run_id: str, ending: Ending) -> None:
        """Record why a run ended. A resumed run ends again; the last ending counts."""

    def confirm(self, run_id: str, final: Final) -> None:
        """Keep the final check of a contender. The last one kept decides on the winner."""

    def finals(self, run_id: str) -> list[Final]:
        """Return the final checks in the order they were kept."""

    def final(self, run_id: str) -> Final | None:
        """Return the last final check."""

    def nodes(self, run_id: str) -> list[Node]:
        """Return finished nodes in landing order."""

    def unfinished(self, run_id: str) -> list[TicketRecord]:
        """Return attempts that began and never finished, lowest number first."""

    def attempts_with_failed_calls(self, run_id: str) -> set[int]:
        """Return the numbers of attempts with a released reservation: a call was refused or not answered."""

    def calls(self, run_id: str, number: int | None = None) -> list[Call]:
        """Return journalled calls in order, of one attempt or of all."""

    def count_calls(self, run_id: str) -> dict[Role, int]:
        """Return the number of journalled calls of each role."""

    def spent(self, run_id: str) -> Spend:
        """Return the cost of settled calls plus the worst case of open reservations."""

    def seconds(self, run_id: str) -> float:
        """Return the time a run has taken so far."""

    def close(self) -> None:
        """Release the file."""


class StoreReader(Protocol):
    """The store of views and benchmarks. ``runs`` to ``final`` are as in ``Store``; the rest never reads long texts."""

    def runs(self) -> list[RunRecord]: ...

    def nodes(self, run_id: str, skip: int = 0) -> list[Node]:
        """Return finished nodes in landing order, without the first ``skip``."""

    def node(self, run_id: str, number: int) -> Node | None:
        """Return one finished node, or None."""

    def calls(self, run_id: str, number: int | None = None) -> list[Call]: ...

    def unfinished(self, run_id: str) -> list[TicketRecord]: ...

    def spent(self, run_id: str) -> Spend: ...

    def seconds(self, run_id: str) -> float: ...

    def final(self, run_id: str) -> Final | None: ...

    def judgements(self, run_id: str) -> list[Judgement]:
        """Return finished nodes in landing order without their texts."""

    def ending(self, run_id: str) -> Ending | None:
        """Return why a run ended last, or None if no ending was recorded."""

    def usage(self, run_id: str) -> dict[Role, RoleUsage]:
        """Return the totals of the journalled calls of each role."""

    def models(self, run_id: str) -> list[str]:
        """Return the names of the models that answered, each once."""

    def accounts(self, run_id: str) -> list[AttemptAccount]:
        """Return the cost of each attempt that made a call, lowest number first."""

    def versions(self) -> dict[str, tuple[int, ...]]:
        """Return numbers by run, in the order of ``runs``; they change whenever the run does."""

    def close(self) -> None: ...
