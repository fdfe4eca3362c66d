"""The agents of the method ``informed``. The planner names regions; the machine makes the scaffold from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stark.agents import anchors
from stark.agents.informed.plans import PLAN_FORM, PLAN_FORM_WITHOUT_REGIONS, PlanAnswer, read_plan
from stark.agents.informed.prompts import InformedPrompts
from stark.agents.informed.regions import choose_regions, make_scaffold
from stark.agents.replies import CODE_FORM, DEBUG_FORM, read_kernel
from stark.agents.roles import Proposal, Team, converse, describe_fault, make_proposal
from stark.core.interfaces import AttemptContext
from stark.core.records import Ticket
from stark.core.tree import ROOT_ID, Plan, Role, Tree

InformedTeam = Team[InformedPrompts]


async def plan(team: InformedTeam, ticket: Ticket, context: AttemptContext, rejected: Sequence[str] = ()) -> Proposal:
    """Ask the planner for a design or a change. ``rejected`` are its plans that led to known code."""
    anchored = team.settings.anchors.mode != "off"
    messages = team.prompts.plan(ticket, rejected)
    answer, wrong, notes = await converse(
        team,
        context,
        Role.PLAN,
        messages,
        PLAN_FORM if anchored else PLAN_FORM_WITHOUT_REGIONS,
        [node.id for node in ticket.tree] if team.settings.windows.enabled else [ticket.parent.id],
        read_plan,
        lambda given: _find_faults(given, ticket, anchored),
    )
    if not answer.text:
        return Proposal(Role.PLAN, fault=describe_fault(answer), notes=notes)
    made = _make_plan(answer, ticket, anchored, wrong)
    context.announce(made.idea or made.advice)
    return Proposal(Role.PLAN, plan=made, notes=notes)


async def code(team: InformedTeam, ticket: Ticket, context: AttemptContext, made: Plan) -> Proposal:
    """Ask the coder for the plan's candidate."""
    bases = made.bases or (ticket.parent.id,)
    messages = team.prompts.code(ticket, made)
    answer, _, notes = await converse(team, context, Role.CODE, messages, CODE_FORM, bases, read_kernel)
    proposal = make_proposal(Role.CODE, answer, notes, made)
    if proposal.source is None or not made.grounded:
        return proposal
    base = ticket.tree[bases[0]]
    share = anchors.measure_outside_share(base.source or "", made.scaffold or "", proposal.source)
    return replace(proposal, outside_share=share)


async def debug(team: InformedTeam, ticket: Ticket, context: AttemptContext) -> Proposal:
    """Ask the debugger to repair the selected node; its plan is inherited."""
    context.announce(f"repair of #{ticket.parent.id}")
    messages, shown = team.prompts.debug(ticket), [ticket.parent.id]
    answer, _, notes = await converse(team, context, Role.DEBUG, messages, DEBUG_FORM, shown, read_kernel)
    return make_proposal(Role.DEBUG, answer, notes, ticket.parent.plan)


def _find_faults(answer: PlanAnswer, ticket: Ticket, anchored: bool) -> list[str]:
    """Return the faults of a plan, each as a sentence for the planner."""
    known = [number for number in answer.bases if _can_be_base(ticket.tree, number)]
    if unknown := [f"#{number}" for number in answer.bases if number not in known]:
        return [f"{' and '.join(unknown)}: there is no such attempt to build on; choose from the rows."]
    base_id = known[0] if known else ticket.parent.id
    if base_id == ROOT_ID or not anchored:
        return []  # a design of its own changes everything
    source = ticket.tree[base_id].source or ""
    regions, wrong = choose_regions(answer.regions, source)
    return wrong or list(anchors.find_violations(make_scaffold(source, regions), source))


def _make_plan(answer: PlanAnswer, ticket: Ticket, anchored: bool, wrong: Sequence[str]) -> Plan:
    """Make the plan from what is usable of an answer."""
    bases = tuple(number for number in answer.bases if _can_be_base(ticket.tree, number))
    source = ticket.tree[bases[0] if bases else ticket.parent.id].source or ""
    is_design = (bases[0] if bases else ticket.parent.id) == ROOT_ID
    scaffold = None
    if anchored and not is_design:
        scaffold = make_scaffold(source, choose_regions(answer.regions, source)[0])
        scaffold = scaffold if anchors.BEGIN in scaffold else None
    chosen = () if bases == (ticket.parent.id,) else bases
    return Plan(answer.text, scaffold, tuple(wrong), answer.idea, chosen)


def _can_be_base(tree: Tree, number: int) -> bool:
    return number in tree and tree[number].source is not None
