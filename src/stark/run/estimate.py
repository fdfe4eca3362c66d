"""An estimate of the cost of a run, before it starts (``--dry-run``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stark.agents.informed.prompts import InformedPrompts
from stark.agents.windows import Window
from stark.core.chat import Message, Usage
from stark.core.interfaces import ChatModel
from stark.core.records import RunRecord, Ticket
from stark.core.settings import Settings
from stark.core.tree import ROOT_ID, Attempt, Node, Plan, Role, Tree
from stark.run.methods import make_team
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing

CHARACTERS_PER_TOKEN = 3.5
REPAIR_SHARE = 0.3  # attempts that are one repair instead of a plan and its code
WINDOW_NODES = 3  # average number of nodes in a window besides the selected one and the root
NODE_CHARACTERS = 1_500  # advice, log and result of one node, without its source
REPLY_TOKENS = 1_500  # explanation in one reply, without the source
SOURCE_GROWTH = 2.0  # a candidate with its kernel, compared with the task


@dataclass(frozen=True)
class Estimate:
    """Expected calls, tokens and money of one role; money is None if the price is not known."""

    role: Role
    model: str
    calls: int
    usage: Usage
    usd: float | None


def estimate(record: RunRecord, settings: Settings, models: Mapping[Role, ChatModel]) -> list[Estimate]:
    """Return one estimate per role, from the prompts that would be sent."""
    source = record.task.source
    written = _first_prompts(record, settings)
    source_size = SOURCE_GROWTH * len(source)
    history = WINDOW_NODES * (source_size + NODE_CHARACTERS) if settings.windows.enabled else 0.0
    found = []
    for role, model in models.items():
        calls = _calls(role, settings.budget.attempts)
        prompt = sum(len(message.content) for message in written[role]) + history
        usage = Usage(
            input_tokens=round(calls * prompt / CHARACTERS_PER_TOKEN),
            output_tokens=round(calls * (source_size / CHARACTERS_PER_TOKEN + REPLY_TOKENS)),
        )
        found.append(Estimate(role, model.name, calls, usage, model.cost_usd(usage)))
    return found


def _first_prompts(record: RunRecord, settings: Settings) -> dict[Role, Sequence[Message]]:
    """Write the prompts of a first attempt."""
    source = record.task.source
    root = Node(ROOT_ID, None, Attempt(Role.REFERENCE, source, EvalReport(Outcome.OK, Timing((1.0,)))))
    prompts = make_team(settings, record.templates, record.task, record.device).prompts
    if isinstance(prompts, InformedPrompts):
        ticket = Ticket(1, root, Tree([root]), settings.seed)
        written = {Role.PLAN: prompts.plan(ticket), Role.CODE: prompts.code(ticket, Plan(""))}
        return {**written, Role.DEBUG: prompts.debug(ticket)}
    window = Window(root, root, ())
    return {
        Role.PLAN: prompts.plan(window, None),
        Role.CODE: prompts.code(window, Plan("", source)),
        Role.DEBUG: prompts.debug(window),
        Role.SOLO: prompts.solo(window),
    }


def _calls(role: Role, attempts: int) -> int:
    share = {Role.PLAN: 1 - REPAIR_SHARE, Role.CODE: 1 - REPAIR_SHARE, Role.DEBUG: REPAIR_SHARE, Role.SOLO: 1.0}
    return round(attempts * share[role])
