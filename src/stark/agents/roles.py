"""The agents as plain functions: build the window, write the prompt, ask, read the answer.

An answer that cannot be used, or a scaffold that breaks the anchor rules, is sent back with the reason; what is left
after that is used as far as it goes and recorded as what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stark.agents import anchors
from stark.agents.prompts import Prompts, sample_strategy
from stark.agents.replies import (
    CODE_FORM,
    DEBUG_FORM,
    PLAN_FORM,
    PLAN_FORM_WITHOUT_ANCHORS,
    SOLO_FORM,
    Answer,
    read_kernel,
    read_plan,
)
from stark.agents.windows import Window, bare_window, code_window, debug_window, plan_window
from stark.core.chat import Message, Reply, ReplyFault, ReplyForm
from stark.core.interfaces import Desk
from stark.core.records import Ticket
from stark.core.settings import Settings
from stark.core.tree import Plan, Role

FEW_WORDS = 80  # characters; no advice is as short
POINTLESS_TO_SEND_BACK = frozenset({ReplyFault.REFUSED, ReplyFault.PROMPT_TOO_LONG, ReplyFault.TOO_LARGE})


@dataclass(frozen=True)
class Team:
    """What the agents of a run have in common."""

    prompts: Prompts
    settings: Settings


@dataclass(frozen=True)
class Proposal:
    """What an agent came up with. ``fault`` says why there is no source or no plan."""

    role: Role
    source: str | None = None
    plan: Plan | None = None
    explanation: str = ""
    fault: str | None = None
    outside_share: float | None = None
    notes: tuple[str, ...] = ()


async def plan(team: Team, ticket: Ticket, desk: Desk) -> Proposal:
    """Ask the planner for one optimisation and the scaffold that marks where it goes."""
    anchored = team.settings.anchors.mode != "off"
    form = PLAN_FORM if anchored else PLAN_FORM_WITHOUT_ANCHORS
    parent_source = ticket.parent.source or ""

    def broken_rules(answer: Answer) -> tuple[str, ...]:
        return anchors.violations(answer.source, parent_source) if anchored and answer.source else ()

    window = plan_window(ticket, team.settings.windows)
    messages = team.prompts.plan(window, _strategy(team, ticket, desk))
    answer, wrong, notes = await _converse(
        team, desk, Role.PLAN, messages, form, window, lambda reply: read_plan(reply, form), broken_rules
    )
    if not answer.text and answer.source is None:
        return Proposal(Role.PLAN, fault=_describe(answer), notes=notes)
    return Proposal(Role.PLAN, plan=Plan(answer.text, answer.source, wrong), notes=notes)


async def code(team: Team, ticket: Ticket, desk: Desk, made: Plan) -> Proposal:
    """Ask the coder to resolve the plan's anchors into a complete candidate."""
    window = code_window(ticket, team.settings.windows)
    messages = team.prompts.code(window, made)
    answer, _, notes = await _converse(team, desk, Role.CODE, messages, CODE_FORM, window, read_kernel)
    proposal = _kernel(Role.CODE, answer, notes, made)
    if proposal.source is None or not made.grounded:
        return proposal
    share = anchors.outside_share(ticket.parent.source or "", made.scaffold or "", proposal.source)
    return replace(proposal, outside_share=share)


async def debug(team: Team, ticket: Ticket, desk: Desk) -> Proposal:
    """Ask the debugger to repair the parent; its plan and anchors are inherited."""
    window = debug_window(ticket, team.settings.windows)
    messages = team.prompts.debug(window)
    answer, _, notes = await _converse(team, desk, Role.DEBUG, messages, DEBUG_FORM, window, read_kernel)
    return _kernel(Role.DEBUG, answer, notes, ticket.parent.plan)


async def solo(team: Team, ticket: Ticket, desk: Desk) -> Proposal:
    """Ask the single agent of the baselines for a candidate."""
    window = bare_window(ticket)
    messages = team.prompts.solo(window)
    answer, _, notes = await _converse(team, desk, Role.SOLO, messages, SOLO_FORM, window, read_kernel)
    return _kernel(Role.SOLO, answer, notes, None)


async def _converse(
    team: Team,
    desk: Desk,
    role: Role,
    messages: list[Message],
    form: ReplyForm,
    window: Window,
    read: Callable[[Reply], Answer],
    objections: Callable[[Answer], Sequence[str]] = lambda answer: (),
) -> tuple[Answer, tuple[str, ...], tuple[str, ...]]:
    """Ask, and send the answer back as often as the settings allow. Also returns what is still wrong, and notes."""
    notes: list[str] = []
    best = Answer()
    still_wrong: tuple[str, ...] = ("nothing was answered",)
    for chances_left in range(team.settings.anchors.send_back, -1, -1):
        reply = await desk.ask(role, messages, form, window.ids)
        notes += [f"{role}: {note}" for note in reply.notes]
        answer = read(reply)
        wrong = (answer.detail,) if answer.fault else tuple(objections(answer))
        if answer.source or (not best.source and (answer.text or not best.text)):
            best, still_wrong = _with_earlier_words(answer, best), wrong
        if not wrong or not chances_left or answer.fault in POINTLESS_TO_SEND_BACK:
            break
        notes.append(f"{role}: sent back: {' '.join(wrong)}")
        said = Message("assistant", (reply.arguments or reply.text).strip() or "(no answer)")
        messages = [*messages, said, team.prompts.send_back(wrong)]
    return best, still_wrong, tuple(notes)


def _with_earlier_words(answer: Answer, earlier: Answer) -> Answer:
    """An answer of which only the scaffold was sent back, and which comes again with no advice ("Here is the corrected
    file:"), keeps what it had."""
    kept = earlier.source is not None and len(answer.text) < min(FEW_WORDS, len(earlier.text))
    return replace(answer, text=earlier.text) if kept else answer


def _kernel(role: Role, answer: Answer, notes: tuple[str, ...], made: Plan | None) -> Proposal:
    if answer.source is None:
        return Proposal(role, plan=made, explanation=answer.text, fault=_describe(answer), notes=notes)
    source = anchors.remove_markers(answer.source)
    if source != answer.source:
        notes = (*notes, f"{role}: left markers in the source; they were removed")
    return Proposal(role, source=source, plan=made, explanation=answer.text, notes=notes)


def _strategy(team: Team, ticket: Ticket, desk: Desk) -> str | None:
    """A direction to consider, where the temperature cannot make the planner's ideas differ."""
    wanted = team.settings.prompts.strategy_hint
    sampled_cold = team.settings.roles.plan.temperature is None or not desk.takes_temperature(Role.PLAN)
    if wanted == "always" or (wanted == "auto" and sampled_cold):
        return sample_strategy(ticket.rng("strategy"))
    return None


def _describe(answer: Answer) -> str:
    return f"{answer.fault}: {answer.detail}" if answer.fault else answer.detail
