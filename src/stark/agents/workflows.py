"""The workflows: one LangGraph graph wraps one attempt (the paper's Algorithm 1, lines 5 to 16).

Only this module imports LangGraph, and only when it builds the first graph, because the import takes a second. The
tree never enters the graph's state, and there is no checkpointer: the store remembers.
"""

from __future__ import annotations

import abc
from dataclasses import replace
from typing import Any, TypedDict

from stark.agents import roles
from stark.agents.informed import roles as informed
from stark.agents.informed.history import IDEA_CHARACTERS
from stark.agents.informed.twins import find_twin
from stark.agents.roles import Proposal, Team
from stark.core.interfaces import AttemptContext
from stark.core.records import Ticket
from stark.core.tree import Attempt
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport


class State(TypedDict, total=False):
    """The state of one attempt."""

    ticket: Ticket
    context: AttemptContext
    proposal: Proposal
    attempt: Attempt
    asked: int  # times that the planner of the method ``informed`` was asked


class GraphWorkflow(abc.ABC):
    """A graph from a state with a ticket and a context to one with an attempt."""

    def __init__(self, team: Team[Any]) -> None:
        self._team = team
        self.graph = self._build()

    async def attempt(self, ticket: Ticket, context: AttemptContext) -> Attempt:
        final = await self.graph.ainvoke(State(ticket=ticket, context=context))
        attempt: Attempt = final["attempt"]
        return attempt

    @abc.abstractmethod
    def _build(self) -> Any:
        """The compiled graph."""


class TeamWorkflow(GraphWorkflow):
    """plan -> code -> evaluate, or debug -> evaluate when the selected node failed."""

    def _build(self) -> Any:
        from langgraph.graph import END, START, StateGraph

        graph = StateGraph(State)
        graph.add_node("plan", self._plan)
        graph.add_node("code", self._code)
        graph.add_node("debug", self._debug)
        graph.add_node("evaluate", evaluate)
        graph.add_conditional_edges(START, choose_route, {"failed": "debug", "not failed": "plan"})
        graph.add_conditional_edges("plan", choose_after_plan, {"plan": "code", "no plan": "evaluate"})
        graph.add_edge("code", "evaluate")
        graph.add_edge("debug", "evaluate")
        graph.add_edge("evaluate", END)
        return graph.compile()

    async def _plan(self, state: State) -> State:
        return {"proposal": await roles.plan(self._team, state["ticket"], state["context"])}

    async def _code(self, state: State) -> State:
        planned = state["proposal"]
        assert planned.plan is not None
        coded = await roles.code(self._team, state["ticket"], state["context"], planned.plan)
        return {"proposal": replace(coded, notes=planned.notes + coded.notes)}

    async def _debug(self, state: State) -> State:
        return {"proposal": await roles.debug(self._team, state["ticket"], state["context"])}


class SoloWorkflow(GraphWorkflow):
    """One agent writes a candidate, then it is evaluated."""

    def _build(self) -> Any:
        from langgraph.graph import END, START, StateGraph

        graph = StateGraph(State)
        graph.add_node("solo", self._solo)
        graph.add_node("evaluate", evaluate)
        graph.add_edge(START, "solo")
        graph.add_edge("solo", "evaluate")
        graph.add_edge("evaluate", END)
        return graph.compile()

    async def _solo(self, state: State) -> State:
        return {"proposal": await roles.solo(self._team, state["ticket"], state["context"])}


class InformedWorkflow(GraphWorkflow):
    """plan -> code -> evaluate, or debug -> evaluate. Code that is known already goes back to the planner, once."""

    def _build(self) -> Any:
        from langgraph.graph import END, START, StateGraph

        graph = StateGraph(State)
        graph.add_node("plan", self._plan)
        graph.add_node("code", self._code)
        graph.add_node("debug", self._debug)
        graph.add_node("evaluate", evaluate_unless_known)
        graph.add_conditional_edges(START, choose_route, {"failed": "debug", "not failed": "plan"})
        graph.add_conditional_edges("plan", choose_after_plan, {"plan": "code", "no plan": "evaluate"})
        graph.add_conditional_edges("code", choose_after_code, {"known code": "plan", "new": "evaluate"})
        graph.add_edge("debug", "evaluate")
        graph.add_edge("evaluate", END)
        return graph.compile()

    async def _plan(self, state: State) -> State:
        before = state.get("proposal")
        rejected = [before.plan.idea or before.plan.advice[:IDEA_CHARACTERS]] if before and before.plan else []
        planned = await informed.plan(self._team, state["ticket"], state["context"], rejected)
        notes = (*before.notes, f"plan: asked again, {rejected[0]!r} led to known code") if before else ()
        return {"proposal": replace(planned, notes=notes + planned.notes), "asked": state.get("asked", 0) + 1}

    async def _code(self, state: State) -> State:
        planned = state["proposal"]
        assert planned.plan is not None
        coded = await informed.code(self._team, state["ticket"], state["context"], planned.plan)
        return {"proposal": replace(coded, notes=planned.notes + coded.notes)}

    async def _debug(self, state: State) -> State:
        return {"proposal": await informed.debug(self._team, state["ticket"], state["context"])}


WORKFLOWS = {"team": TeamWorkflow, "solo": SoloWorkflow, "informed": InformedWorkflow}


def edges_of(workflow: Any) -> list[tuple[str, str, str]]:
    """The edges of a workflow's compiled ``graph``: from, to, condition."""
    return [(edge.source, edge.target, str(edge.data or "")) for edge in workflow.graph.get_graph().edges]


# A function that is not async would run in a thread of its own.
async def choose_route(state: State) -> str:
    """Algorithm 1, line 5: repair a failed node, improve any other."""
    return "failed" if state["ticket"].parent.failed else "not failed"


async def choose_after_plan(state: State) -> str:
    """Skip the coder if the reply holds no plan."""
    return "plan" if state["proposal"].plan else "no plan"


async def choose_after_code(state: State) -> str:
    """Ask the planner once more if the code is known from an earlier attempt."""
    source = state["proposal"].source
    is_known = source is not None and find_twin(state["ticket"].tree, source) is not None
    return "known code" if is_known and state["asked"] == 1 else "new"


async def evaluate_unless_known(state: State) -> State:
    """Take over the report of an earlier attempt with the same code, or evaluate the candidate."""
    source = state["proposal"].source
    twin = find_twin(state["ticket"].tree, source) if source is not None else None
    if twin is None:
        return await evaluate(state)
    return {"attempt": replace(_make_attempt(state["proposal"], twin.report), duplicate_of=twin.id)}


async def evaluate(state: State) -> State:
    """Evaluate the candidate; a proposal without one is an unusable reply."""
    proposal = state["proposal"]
    if proposal.source is None:
        report = EvalReport(Outcome.UNUSABLE_REPLY, log=proposal.fault or "")
    else:
        report = await state["context"].evaluate(proposal.source)
    return {"attempt": _make_attempt(proposal, report)}


def _make_attempt(proposal: Proposal, report: EvalReport) -> Attempt:
    return Attempt(
        role=proposal.role,
        source=proposal.source,
        report=report,
        plan=proposal.plan,
        explanation=proposal.explanation,
        outside_share=proposal.outside_share,
        notes=proposal.notes,
    )
