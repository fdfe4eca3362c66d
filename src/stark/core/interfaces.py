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

import random
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from stark.core.chat import Message, Reply, ReplyForm, Usage
from stark.core.records import Attempt, Call, Ending, Event, Final, RoleUsage, RunRecord, Spend, Ticket, TicketRecord
from stark.core.tree import Judgement, Node, Role, Tree
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import EvalRequest


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


Listener = Callable[[Event], None]
