"""Fills the templates of the method ``informed``. A prompt depends on the ticket alone, and so on what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stark.agents.anchors import BEGIN, END, remove_markers
from stark.agents.informed.directions import choose_direction, list_changes, list_designs
from stark.agents.informed.history import (
    describe_base,
    format_limit,
    list_failures,
    list_others,
    list_rows,
    list_sources,
    shorten_line,
)
from stark.agents.informed.rules import list_facts, list_rules
from stark.agents.prompts import PromptContext, name_target
from stark.agents.template_files import INFORMED_VARIABLES, make_environment, render
from stark.core.chat import Message
from stark.core.records import InFlight, Ticket
from stark.core.tree import ROOT_ID, Node, Plan, Role

_MARKED = {"enforced": True, "stripped": False, "off": False}


class InformedPrompts:
    """Writes the messages of every role."""

    def __init__(self, templates: Mapping[str, str], context: PromptContext) -> None:
        self._context = context
        self._environment = make_environment(dict(templates))
        language, hardware, libraries = name_target(context)
        self._fixed: dict[str, Any] = dict.fromkeys(INFORMED_VARIABLES, "") | {
            "target": str(context.target),
            "language": language,
            "hardware": hardware,
            "libraries": libraries,
            "device": list_facts(context.device),
            "task_source": context.task.source,
            "hint": context.task.hint,
            "anchors": context.anchors.mode != "off",
            "begin": BEGIN,
            "end": END,
        }

    def plan(self, ticket: Ticket, rejected: Sequence[str] = ()) -> list[Message]:
        """Ask for a design at the root, and for one change below it."""
        return self._messages(
            Role.PLAN,
            ticket,
            ticket.parent,
            rows=self._rows(ticket),
            others=list_others(ticket, self._context.windows),
            in_flight=[self._describe_rival(rival, ticket) for rival in ticket.rivals],
            direction=self.direction(ticket),
            rejected=list(rejected),
        )

    def code(self, ticket: Ticket, plan: Plan) -> list[Message]:
        """Ask for the code of a plan, in the source that it builds on. A merge shows the other source too."""
        bases = plan.bases or (ticket.parent.id,)
        base, mode = ticket.tree[bases[0]], self._context.anchors.mode
        source = plan.scaffold if plan.grounded and mode == "enforced" else base.source
        return self._messages(
            Role.CODE,
            ticket,
            base,
            source,
            advice=plan.advice,
            marked=plan.grounded and mode == "enforced",
            others=list_sources(ticket.tree, [number for number in bases[1:] if number != ROOT_ID]),
            failures=list_failures(ticket, self._context.windows),
        )

    def debug(self, ticket: Ticket) -> list[Message]:
        """Ask for a repair of the node that was selected."""
        failures = list_failures(ticket, self._context.windows)
        return self._messages(Role.DEBUG, ticket, ticket.parent, rows=self._rows(ticket), failures=failures)

    def send_back(self, reasons: Sequence[str]) -> Message:
        """Make the message that sends an unusable answer back."""
        return Message("user", render(self._environment, "send_back", self._fixed | {"reasons": list(reasons)}))

    def direction(self, ticket: Ticket) -> str:
        """Return the direction that an attempt is asked to take."""
        return self._choose_direction(ticket, ticket.sibling)

    def _choose_direction(self, ticket: Ticket, sibling: int) -> str:
        context, is_root = self._context, ticket.parent.id == ROOT_ID
        designs = list_designs(context.target, context.allows_matrix_units)
        choices = designs if is_root else list_changes(context.target)
        return choose_direction(choices, ticket.seed, ticket.parent.id, sibling)

    def _describe_rival(self, rival: InFlight, ticket: Ticket) -> str:
        idea = rival.idea or f"asked to {self._choose_direction(ticket, rival.sibling)}"
        return f"#{rival.number}: {shorten_line(idea, 200)}"

    def _rows(self, ticket: Ticket) -> list[str]:
        return [] if self._context.windows.enabled is False else list_rows(ticket.tree, ticket.parent.id)

    def _messages(
        self, role: Role, ticket: Ticket, base: Node, source: str | None = None, **given: Any
    ) -> list[Message]:
        root = ticket.tree.root
        values = self._fixed | {
            "role": str(role),
            "bound": format_limit(ticket.tree),
            "rules": list_rules(self._context.evaluation, self._context.device, root, with_clock=role is Role.PLAN),
            "base": describe_base(base, ticket.tree, self._context.windows, source and _without(source, given)),
            **given,
        }
        return [
            Message("system", render(self._environment, "system", values)),
            Message("user", render(self._environment, str(role), values)),
        ]


def _without(source: str, given: Mapping[str, Any]) -> str:
    return source if given.get("marked") else remove_markers(source)
