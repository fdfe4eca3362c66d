from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark.agents.windows import bare_window, code_window, debug_window, plan_window
from stark.core.records import Ticket
from stark.core.settings import WindowSettings
from stark.core.tree import Attempt, Node, Role, Tree
from stark_worker.protocol.errors import Outcome
from strategies import report, trees

ROLES = {"plan": plan_window, "code": code_window, "debug": debug_window}


@st.composite
def tickets(draw: st.DrawFn) -> Ticket:
    tree = draw(trees())
    view = tree.at(draw(st.integers(1, len(tree))))
    parent = draw(st.sampled_from([node for node in view if node.source is not None]))
    return Ticket(draw(st.integers(1, 99)), parent, view, seed=draw(st.integers(0, 9)))


settings = st.builds(
    WindowSettings,
    enabled=st.sampled_from([True, None]),
    leaders=st.integers(0, 4),
    cap=st.integers(0, 6),
    cap_includes_root=st.booleans(),
)


def allowed(role: str, ticket: Ticket) -> set[int]:
    """The rule's own set, worked out from parent ids alone."""
    i = ticket.parent
    children = {node.id for node in ticket.tree if node.parent_id == i.id}
    siblings = {node.id for node in ticket.tree if node.parent_id == i.parent_id and node.id != i.id}
    cousins = {node.id for node in ticket.tree if node.parent_id in siblings}
    subtree = {i.id}
    for _ in ticket.tree:
        subtree |= {node.id for node in ticket.tree if node.parent_id in subtree}
    leaders = {node.id for node in ticket.tree if not node.failed and node.id not in subtree | {0}}
    return {"plan": children | leaders, "code": children | cousins, "debug": siblings}[role]


@pytest.mark.parametrize("role", ROLES)
@given(ticket=tickets(), settings=settings)
def test_a_window_holds_no_stranger_and_respects_the_cap(role, ticket, settings):
    window = ROLES[role](ticket, settings)
    assert {node.id for node in window.others} <= allowed(role, ticket)
    counted = window.shown if settings.cap_includes_root else window.others
    assert len(counted) <= settings.cap
    assert all(node.source is not None and node.id in ticket.tree for node in window.shown)


@pytest.mark.parametrize("role", ROLES)
@given(ticket=tickets(), settings=settings)
def test_the_selected_node_and_the_root_are_always_there(role, ticket, settings):
    window = ROLES[role](ticket, settings)
    assert (window.selected, window.root) == (ticket.parent, ticket.tree.root)
    assert {ticket.parent.id, 0} <= set(window.ids)
    assert len(set(window.ids)) == len(window.ids)
    if not settings.cap_includes_root:
        assert {ticket.parent.id, 0} <= {node.id for node in window.shown}
    if role == "debug" and settings.cap:
        assert ticket.parent in window.shown, "its log says what is to be repaired"


@pytest.mark.parametrize("role", ROLES)
@given(ticket=tickets(), settings=settings)
def test_shown_nodes_stand_in_landing_order_and_are_the_same_every_time(role, ticket, settings):
    window = ROLES[role](ticket, settings)
    landed = [node.id for node in ticket.tree]
    positions = [landed.index(node.id) for node in window.shown]
    assert positions == sorted(set(positions))
    assert ROLES[role](ticket, settings) == window


@given(ticket=tickets(), leaders=st.integers(0, 4))
def test_leaders_are_the_fastest_with_sources_of_their_own(ticket, leaders):
    window = plan_window(ticket, WindowSettings(leaders=leaders, cap=99))
    chosen = [node for node in window.others if node.parent_id != ticket.parent.id]
    assert len(chosen) <= leaders
    sources = [node.source for node in chosen]
    assert len(set(sources)) == len(sources)
    assert ticket.parent.source not in sources
    if chosen:
        slowest = max(node.runtime_ms for node in chosen)
        left_out = allowed("plan", ticket) - {node.id for node in window.others}
        unseen = [ticket.tree[number] for number in left_out]
        assert all(
            node.runtime_ms >= slowest or node.source in [*sources, ticket.parent.source]
            for node in unseen
            if node.source is not None and node.parent_id != ticket.parent.id
        )


@pytest.mark.parametrize("role", ROLES)
@given(ticket=tickets())
def test_nothing_is_dropped_below_the_cap(role, ticket):
    window = ROLES[role](ticket, WindowSettings(cap=99, leaders=0))
    expected = allowed(role, ticket)
    if role == "plan":
        expected = {node.id for node in ticket.tree if node.parent_id == ticket.parent.id}
    expected = {number for number in expected if ticket.tree[number].source is not None}
    assert {node.id for node in window.others} == expected - {ticket.parent.id, 0}


@pytest.mark.parametrize("role", ROLES)
@given(ticket=tickets())
def test_windows_turned_off_show_the_selected_node_and_the_root(role, ticket):
    window = ROLES[role](ticket, WindowSettings(enabled=False))
    assert window == bare_window(ticket)
    assert {node.id for node in window.shown} == {ticket.parent.id, 0}


def test_the_literal_cap_may_leave_out_the_root_and_the_draw_depends_on_the_attempt():
    tree = Tree()
    tree.add(Node(0, None, Attempt(Role.REFERENCE, "root", report(Outcome.OK))))
    for number in range(1, 9):
        tree.add(Node(number, 0, Attempt(Role.CODE, f"source {number}", report(Outcome.OK))))
    drawn = [
        plan_window(Ticket(number, tree.root, tree, seed=1), WindowSettings(cap=3, cap_includes_root=True))
        for number in range(20)
    ]
    assert {len(window.shown) for window in drawn} == {3}
    assert len({tuple(node.id for node in window.shown) for window in drawn}) > 1
    assert any(tree.root not in window.shown for window in drawn)
    assert all(window.root is tree.root and 0 in window.ids for window in drawn)
