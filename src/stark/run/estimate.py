"""An estimate of the cost of a run, before it starts (``--dry-run``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stark.agents.prompts import PromptContext, Prompts
from stark.agents.windows import Window
from stark.core.chat import Message, Usage
from stark.core.interfaces import ChatModel
from stark.core.records import RunRecord
from stark.core.settings import Settings
from stark.core.tree import ROOT_ID, Attempt, Node, Plan, Role
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
    prompt_context = PromptContext.of(record.task, record.device, settings)
    prompts = Prompts(record.templates, prompt_context)
    source = record.task.source
    root = Node(ROOT_ID, None, Attempt(Role.REFERENCE, source, EvalReport(Outcome.OK, Timing((1.0,)))))
    window = Window(root, root, ())
    written: dict[Role, Sequence[Message]] = {
        Role.PLAN: prompts.plan(window, None),
        Role.CODE: prompts.code(window, Plan("", source)),
        Role.DEBUG: prompts.debug(window),
        Role.SOLO: prompts.solo(window),
    }
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


def _calls(role: Role, attempts: int) -> int:
    share = {Role.PLAN: 1 - REPAIR_SHARE, Role.CODE: 1 - REPAIR_SHARE, Role.DEBUG: REPAIR_SHARE, Role.SOLO: 1.0}
    return round(attempts * share[role])
