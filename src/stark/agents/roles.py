"""The agents as plain functions: build the window, write the prompt, ask, read the answer.

An unusable answer, or a scaffold that breaks the anchor rules, is sent back with the reason. The best answer is used
and its faults are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

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
from stark.agents.windows import bare_window, code_window, debug_window, plan_window
from stark.core.chat import Message, Reply, ReplyFault, ReplyForm
from stark.core.interfaces import AttemptContext
from stark.core.records import Ticket
from stark.core.settings import Settings
from stark.core.tree import ROOT_ID, Plan, Role

MIN_ADVICE_CHARACTERS = 80  # a shorter text is no advice
FINAL_FAULTS = frozenset({ReplyFault.REFUSED, ReplyFault.PROMPT_TOO_LONG, ReplyFault.TOO_LARGE})


AnswerT = TypeVar("AnswerT", bound=Answer)
PromptsT = TypeVar("PromptsT")


@dataclass(frozen=True)
class Team(Generic[PromptsT]):
    """The prompts and settings that the agents of a run share."""

    prompts: PromptsT
    settings: Settings


@dataclass(frozen=True)
class Proposal:
    """The result of an agent. ``fault`` is the reason why there is no source or no plan."""

    role: Role
    source: str | None = None
    plan: Plan | None = None
    explanation: str = ""
    fault: str | None = None
    outside_share: float | None = None
    notes: tuple[str, ...] = ()


async def plan(team: Team[Prompts], ticket: Ticket, context: AttemptContext) -> Proposal:
    """Ask the planner for one optimisation, and a scaffold that marks the code to change."""
    anchored = team.settings.anchors.mode != "off"
    form = PLAN_FORM if anchored else PLAN_FORM_WITHOUT_ANCHORS
    parent_source = ticket.parent.source or ""

    def broken_rules(answer: Answer) -> tuple[str, ...]:
        return anchors.find_violations(answer.source, parent_source) if anchored and answer.source else ()

    window = plan_window(ticket, team.settings.windows)
    messages = team.prompts.plan(window, _choose_strategy(team, ticket, context))
    answer, wrong, notes = await converse(
        team, context, Role.PLAN, messages, form, window.ids, lambda reply: read_plan(reply, form), broken_rules
    )
    if not answer.text and answer.source is None:
        return Proposal(Role.PLAN, fault=describe_fault(answer), notes=notes)
    return Proposal(Role.PLAN, plan=Plan(answer.text, answer.source, wrong), notes=notes)


async def code(team: Team[Prompts], ticket: Ticket, context: AttemptContext, made: Plan) -> Proposal:
    """Ask the coder to resolve the plan's anchors into a complete candidate."""
    window = code_window(ticket, team.settings.windows)
    messages = team.prompts.code(window, made)
    answer, _, notes = await converse(team, context, Role.CODE, messages, CODE_FORM, window.ids, read_kernel)
    proposal = make_proposal(Role.CODE, answer, notes, made)
    if proposal.source is None or not made.grounded or ticket.parent.id == ROOT_ID:
        return proposal  # a child of the root is a new file, so nearly all of it would count as outside
    share = anchors.measure_outside_share(ticket.parent.source or "", made.scaffold or "", proposal.source)
    return replace(proposal, outside_share=share)


async def debug(team: Team[Prompts], ticket: Ticket, context: AttemptContext) -> Proposal:
    """Ask the debugger to repair the parent; its plan and anchors are inherited."""
    window = debug_window(ticket, team.settings.windows)
    messages = team.prompts.debug(window)
    answer, _, notes = await converse(team, context, Role.DEBUG, messages, DEBUG_FORM, window.ids, read_kernel)
    return make_proposal(Role.DEBUG, answer, notes, ticket.parent.plan)


async def solo(team: Team[Prompts], ticket: Ticket, context: AttemptContext) -> Proposal:
    """Ask the single agent of the baselines for a candidate."""
    window = bare_window(ticket, team.settings.windows.observations)
    messages = team.prompts.solo(window)
    answer, _, notes = await converse(team, context, Role.SOLO, messages, SOLO_FORM, window.ids, read_kernel)
    return make_proposal(Role.SOLO, answer, notes, None)


async def converse(
    team: Team[Any],
    context: AttemptContext,
    role: Role,
    messages: list[Message],
    form: ReplyForm,
    shown: Iterable[int],
    read: Callable[[Reply], AnswerT],
    objections: Callable[[AnswerT], Sequence[str]] = lambda answer: (),
) -> tuple[AnswerT, tuple[str, ...], tuple[str, ...]]:
    """Ask, and send a faulty answer back as often as the settings allow. Return the answer, its faults, and notes."""
    notes: list[str] = []
    best: AnswerT | None = None
    still_wrong: tuple[str, ...] = ()
    shown = tuple(shown)
    for chances_left in range(team.settings.anchors.max_retries, -1, -1):
        reply = await context.ask(role, messages, form, shown)
        notes += [f"{role}: {note}" for note in reply.notes]
        answer = read(reply)
        wrong = (answer.detail,) if answer.fault else tuple(objections(answer))
        if best is None or answer.source or (not best.source and (answer.text or not best.text)):
            best, still_wrong = _keep_earlier_advice(answer, best), wrong
        if not wrong or not chances_left or answer.fault in FINAL_FAULTS:
            break
        notes.append(f"{role}: sent back: {' '.join(wrong)}")
        answered = Message("assistant", (reply.arguments or reply.text).strip() or "(no answer)")
        messages = [*messages, answered, team.prompts.send_back(wrong)]
    assert best is not None
    return best, still_wrong, tuple(notes)


def _keep_earlier_advice(answer: AnswerT, earlier: AnswerT | None) -> AnswerT:
    """Keep the earlier advice if the corrected answer has none ("Here is the corrected file:")."""
    if earlier is None:
        return answer
    kept = earlier.source is not None and len(answer.text) < min(MIN_ADVICE_CHARACTERS, len(earlier.text))
    return replace(answer, text=earlier.text) if kept else answer


def make_proposal(role: Role, answer: Answer, notes: tuple[str, ...], made: Plan | None) -> Proposal:
    if answer.source is None:
        return Proposal(role, plan=made, explanation=answer.text, fault=describe_fault(answer), notes=notes)
    source = anchors.remove_markers(answer.source)
    if source != answer.source:
        notes = (*notes, f"{role}: left markers in the source; they were removed")
    return Proposal(role, source=source, plan=made, explanation=answer.text, notes=notes)


def _choose_strategy(team: Team[Prompts], ticket: Ticket, context: AttemptContext) -> str | None:
    """Draw a direction for the planner if temperature cannot vary its ideas."""
    wanted = team.settings.prompts.strategy_hint
    has_temperature = team.settings.roles.plan.temperature is not None and context.takes_temperature(Role.PLAN)
    if wanted == "always" or (wanted == "auto" and not has_temperature):
        return sample_strategy(ticket.rng("strategy"))
    return None


def describe_fault(answer: Answer) -> str:
    return f"{answer.fault}: {answer.detail}" if answer.fault else answer.detail
