"""The contract of every Workflow. Run it on a workflow of your own:

class TestMine(WorkflowConformance):
    @pytest.fixture
    def workflow(self):
        return Mine(team())
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fakes import TASK, HashEvaluator, PretendModel
from stark.agents.roles import Team
from stark.core.chat import Message, Reply, ReplyForm
from stark.core.interfaces import Workflow
from stark.core.records import Ticket
from stark.core.settings import RoleSettings
from stark.core.task import Task
from stark.core.tree import ROOT_ID, Attempt, Node, Role, Tree
from stark.run.methods import make_team, templates_of
from stark.run.settings_loader import load_settings
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing
from stark_worker.protocol.request import EvalRequest


def team(method: str = "stark") -> Team[Any]:
    """The prompts and settings of a method's workflow."""
    settings = load_settings(sets=[f"method={method}"])
    return make_team(settings, templates_of(settings), Task("task", TASK), DeviceFacts("a device", "cpu"))


@dataclass
class CountingContext:
    """A context that answers by itself and notes what was asked of it."""

    text: str | None = None
    asked: list[Role] = field(default_factory=list)
    evaluated: list[str] = field(default_factory=list)

    def takes_temperature(self, role: Role) -> bool:
        return True

    async def ask(self, role: Role, messages: Sequence[Message], form: ReplyForm, window: Iterable[int]) -> Reply:
        self.asked.append(role)
        assert messages[0].role == "system"
        return Reply(text=self.text) if self.text else await PretendModel(RoleSettings()).reply(messages, form)

    def announce(self, idea: str) -> None:
        pass

    async def evaluate(self, source: str) -> EvalReport:
        self.evaluated.append(source)
        return await HashEvaluator(load_settings().evaluation).evaluate(EvalRequest(TASK, source))


def ticket(parent_failed: bool = False) -> Ticket:
    tree = Tree()
    tree.add(Node(ROOT_ID, None, Attempt(Role.REFERENCE, TASK, EvalReport(Outcome.OK, Timing((10.0,))))))
    report = EvalReport(Outcome.CRASH, log="it crashed") if parent_failed else EvalReport(Outcome.OK, Timing((5.0,)))
    tree.add(Node(1, ROOT_ID, Attempt(Role.CODE, TASK.replace("class Model:", "class ModelNew:"), report)))
    return Ticket(2, tree[1], tree, seed=0)


class WorkflowConformance:
    def attempt(self, workflow: Workflow, context: CountingContext, parent_failed: bool) -> Attempt:
        return asyncio.run(workflow.attempt(ticket(parent_failed), context))

    @pytest.mark.parametrize("parent_failed", [False, True])
    def test_an_attempt_ends_in_one_evaluated_candidate(self, workflow: Workflow, parent_failed: bool) -> None:
        context = CountingContext()
        attempt = self.attempt(workflow, context, parent_failed)
        assert context.asked
        assert context.evaluated == [attempt.source]
        assert attempt.report == asyncio.run(context.evaluate(attempt.source or ""))

    @pytest.mark.parametrize("parent_failed", [False, True])
    def test_replies_without_an_answer_are_an_unusable_reply(self, workflow: Workflow, parent_failed: bool) -> None:
        context = CountingContext(text="I would rather not.")
        attempt = self.attempt(workflow, context, parent_failed)
        assert attempt.source is None
        assert attempt.report.outcome is Outcome.UNUSABLE_REPLY
        assert attempt.report.log
        assert context.evaluated == []

    def test_the_same_ticket_asks_the_same_questions(self, workflow: Workflow) -> None:
        first, second = (self.attempt(workflow, CountingContext(), False) for _ in range(2))
        assert first == second
