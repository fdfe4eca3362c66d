"""The suites for a Store and a StoreReader. Run them on a store of your own:

    class TestMyStore(StoreConformance, StoreReaderConformance):
        @pytest.fixture
        def reopen(self, tmp_path):
            return lambda: MyStore(tmp_path)

``reopen()`` opens the same place for writing; the suite closes a store before it opens the next. Leave the reader's
suite out if your store is not read by views and benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from stark.core.chat import Finish, Message, Reply, Usage
from stark.core.errors import StoreError
from stark.core.interfaces import Store
from stark.core.records import Call, Ending, EndReason, RoleUsage, RunRecord, Spend, TicketRecord
from stark.core.task import Task
from stark.core.tree import Attempt, Node, Plan, Role
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport, Phases, Timing

DEVICE = DeviceFacts("Processor", "cpu", cores=2, toolchain={"g++": "12"})
OK = EvalReport(
    Outcome.OK,
    Timing((1.5, 1.25, 0.1)),
    log="fine",
    checks={"mapping": "equal"},
    degenerate="Zeros.",
    device=DEVICE,
    phases_s=Phases(build=1.5),
)
FAILED = EvalReport(Outcome.COMPILE_ERROR, log="error: expected ';'")

AWKWARD = [
    "",
    "a\0b",
    "\ud800 lone \udfff",
    "\ud83d\ude00",  # two surrogates that JSON escapes would turn into one character
    "😀 é\r\n\u2028",
    "x'; DROP TABLE nodes; --",
    "long " * 800_000,
]


def a_run(run_id: str = "run", **changes: Any) -> RunRecord:
    record = RunRecord(
        id=run_id,
        created_at="2026-01-02T03:04:05+00:00",
        task=Task("add", "class Model: ...", hint="fuse"),
        given="class ModelNew: ...",
        settings={"seed": 3, "budget": {"usd": 1.5, "tokens": None}},
        templates={"plan.j2": "Say {{ advice }}"},
        versions={"stark": "0.1.0"},
        device=DEVICE,
        labels={"switch": "anchors.mode=off"},
    )
    return replace(record, **changes)


def a_root(**changes: Any) -> Node:
    return _changed(Node(0, None, Attempt(Role.REFERENCE, "class Model: ...", OK)), changes)


def a_node(number: int, parent_id: int = 0, **changes: Any) -> Node:
    plan = Plan("tile it", scaffold="# <<<IMPROVE BEGIN>>>", violations=("nested",))
    node = Node(
        number, parent_id, Attempt(Role.CODE, f"source {number}", OK, plan, "did it", 0.25, ("no temperature",))
    )
    return _changed(node, changes)


def _changed(node: Node, changes: dict[str, Any]) -> Node:
    place = {name: changes.pop(name) for name in ("id", "parent_id", "same_as") if name in changes}
    return replace(node, attempt=replace(node.attempt, **changes), **place)


def a_call(number: int, index: int = 0, text: str = "an answer", **changes: Any) -> Call:
    reply = Reply(text, '{"advice": "tile"}', Finish.COMPLETE, Usage(100, 20, 60), 0.25, "model-1", ("dropped",))
    messages = (Message("system", "You are"), Message("user", "Do " + text))
    call = Call(number, index, Role.PLAN, "provider:model", messages, "plan", (0, 2), reply, "2026-01-02T03:04:06", 1.5)
    return replace(call, **changes)


class StoreFixtures:
    """A subclass gives the fixture ``reopen``, or its own ``store`` as well."""

    @pytest.fixture
    def reopen(self) -> Callable[[], Store]:
        raise NotImplementedError("a subclass says how its store is opened")

    @pytest.fixture
    def store(self, reopen) -> Iterator[Store]:
        store = reopen()
        yield store
        store.close()

    @pytest.fixture
    def begun(self, store) -> Store:
        """A store with a run, its root, and attempt 1 begun."""
        store.create(a_run())
        store.finish("run", a_root())
        store.begin("run", TicketRecord(1, 0, 1))
        return store


class StoreConformance(StoreFixtures):
    """The suite for the store of a run."""

    def test_a_new_store_is_empty(self, store):
        assert store.runs() == []

    def test_a_run_comes_back_as_it_was(self, store):
        first, second = a_run("b"), a_run("a", given=None)
        store.create(first)
        store.create(second)
        assert store.runs() == [first, second]
        assert store.nodes("a") == store.unfinished("a") == store.calls("a") == []
        assert (store.spent("a"), store.seconds("a")) == (Spend(), 0.0)

    def test_a_run_is_created_once(self, store):
        store.create(a_run())
        with pytest.raises(StoreError):
            store.create(a_run(given=None))
        assert store.runs() == [a_run()]

    def test_an_unknown_run_is_an_error(self, store):
        store.create(a_run())
        for read in (store.nodes, store.unfinished, store.calls, store.spent, store.seconds, store.count_calls):
            with pytest.raises(StoreError, match="other"):
                read("other")

    def test_amended_settings_take_effect(self, store):
        store.create(a_run())
        store.amend("run", {"seed": 3, "budget": {"usd": 9.0}})
        assert store.runs() == [a_run(settings={"seed": 3, "budget": {"usd": 9.0}})]

    def test_nodes_come_back_in_landing_order(self, begun):
        begun.begin("run", TicketRecord(2, 0, 1))
        late = a_node(1, source=None, report=FAILED, plan=None, outside_share=None, notes=())
        twin = a_node(3, parent_id=2, same_as=2)
        for node in (a_node(2), late, twin):
            begun.finish("run", node)
        assert begun.nodes("run") == [a_root(), a_node(2), late, twin]

    def test_finish_is_idempotent(self, begun):
        begun.finish("run", a_node(1))
        begun.finish("run", a_node(1))
        assert begun.nodes("run") == [a_root(), a_node(1)]

    def test_a_landed_node_is_never_replaced(self, begun):
        begun.finish("run", a_node(1))
        with pytest.raises(StoreError):
            begun.finish("run", a_node(1, explanation="another"))
        assert begun.nodes("run") == [a_root(), a_node(1)]

    def test_unfinished_attempts_are_those_that_never_landed(self, begun):
        tickets = [TicketRecord(number, 0, 1) for number in (1, 2, 3)]
        begun.begin("run", tickets[2])
        begun.begin("run", tickets[1])
        begun.finish("run", a_node(2))
        assert begun.unfinished("run") == [tickets[0], tickets[2]]

    def test_runs_do_not_mix(self, begun):
        begun.create(a_run("other"))
        begun.finish("other", a_root(explanation="of the other"))
        begun.begin("other", TicketRecord(1, 0, 1))
        reservation = begun.reserve("other", 1, 0, Spend(500, 2.0))
        begun.journal("other", reservation, a_call(1))
        begun.clock("other", 2.0)
        assert begun.nodes("run") == [a_root()]
        assert begun.calls("run") == []
        assert (begun.spent("run"), begun.seconds("run")) == (Spend(), 0.0)

    def test_calls_come_back_in_order(self, begun):
        begun.begin("run", TicketRecord(2, 0, 1))
        places = [(2, 0), (1, 0), (2, 1), (1, 1)]
        for number, index in places:
            begun.journal("run", begun.reserve("run", number, index, Spend()), a_call(number, index))
        assert begun.calls("run") == [a_call(*place) for place in sorted(places)]
        assert begun.calls("run", 2) == [a_call(2, 0), a_call(2, 1)]
        assert begun.calls("run", 3) == []

    def test_a_reservation_counts_in_full_until_it_is_settled(self, begun):
        first = begun.reserve("run", 1, 0, Spend(1000, 4.0))
        begun.reserve("run", 1, 1, Spend(300, 0.5))
        assert begun.spent("run") == Spend(1300, 4.5)
        begun.journal("run", first, a_call(1))
        assert begun.spent("run") == Spend(120 + 300, 0.25 + 0.5)

    def test_a_released_reservation_costs_nothing(self, begun):
        reservation = begun.reserve("run", 1, 0, Spend(1000, 4.0))
        assert begun.attempts_with_failed_calls("run") == set()
        begun.release(reservation)
        assert begun.spent("run") == Spend()
        assert begun.attempts_with_failed_calls("run") == {1}

    def test_an_unknown_price_counts_as_nothing(self, begun):
        free = replace(a_call(1).reply, cost_usd=None)
        begun.journal("run", begun.reserve("run", 1, 0, Spend(1000, 4.0)), a_call(1, reply=free))
        assert begun.spent("run") == Spend(120, 0.0)
        assert begun.attempts_with_failed_calls("run") == set()
        assert begun.calls("run", 1)[0].reply.cost_usd is None

    def test_a_reservation_is_settled_once(self, begun):
        reservation = begun.reserve("run", 1, 0, Spend(1000, 4.0))
        begun.journal("run", reservation, a_call(1))
        with pytest.raises(StoreError):
            begun.journal("run", reservation, a_call(1, 1))
        with pytest.raises(StoreError):
            begun.release(reservation)
        assert begun.calls("run") == [a_call(1)]
        assert begun.spent("run") == Spend(120, 0.25)

    @pytest.mark.parametrize("text", AWKWARD, ids=lambda text: ascii(text[:20]))
    def test_any_reply_can_be_kept(self, begun, text):
        reply = replace(a_call(1).reply, text=text, arguments=text, notes=(text,))
        call = a_call(1, reply=reply, messages=(Message("user", text),))
        begun.journal("run", begun.reserve("run", 1, 0, Spend()), call)
        assert begun.calls("run") == [call]

    @pytest.mark.parametrize("text", AWKWARD[:-1], ids=ascii)
    def test_any_source_can_be_kept(self, begun, text):
        report = replace(FAILED, log=text, checks={text: text})
        node = a_node(1, source=text, plan=Plan(text, text, (text,)), report=report, explanation=text, notes=(text,))
        begun.finish("run", node)
        assert begun.nodes("run")[1] == node

    def test_the_clock_adds_up(self, begun):
        begun.clock("run", 1.5)
        begun.clock("run", 2.0)
        assert begun.seconds("run") == 3.5

    def test_everything_is_there_after_reopening(self, begun, reopen):
        begun.journal("run", begun.reserve("run", 1, 0, Spend(1000, 4.0)), a_call(1))
        begun.reserve("run", 1, 1, Spend(300, 0.5))  # the process dies before the reply
        begun.begin("run", TicketRecord(2, 0, 1))
        begun.finish("run", a_node(2))
        begun.clock("run", 1.5)
        begun.close()
        store = reopen()
        try:
            assert store.runs() == [a_run()]
            assert store.nodes("run") == [a_root(), a_node(2)]
            assert store.unfinished("run") == [TicketRecord(1, 0, 1)]
            assert store.calls("run") == [a_call(1)]
            assert (store.spent("run"), store.seconds("run")) == (Spend(420, 0.75), 1.5)
            again = store.reserve("run", 1, 1, Spend(300, 0.5))
            store.journal("run", again, a_call(1, 1))
            assert store.spent("run") == Spend(540, 1.0)
        finally:
            store.close()

    def test_closing_twice_is_harmless(self, store):
        store.close()
        store.close()


class StoreReaderConformance(StoreFixtures):
    """The suite for what views and benchmarks read."""

    def test_a_view_of_an_unknown_run_is_an_error(self, store):
        store.create(a_run())
        for read in (store.ending, store.usage, store.judgements, store.models):
            with pytest.raises(StoreError, match="other"):
                read("other")

    def test_judgements_are_the_nodes_without_texts(self, begun):
        begun.finish("run", a_node(2))
        begun.finish("run", a_node(3, parent_id=2, same_as=2))
        assert begun.judgements("run") == [node.judgement for node in begun.nodes("run")]

    def test_the_last_ending_counts(self, begun):
        assert begun.ending("run") is None
        begun.end("run", Ending(EndReason.FAULT, "the GPU fell off the bus"))
        begun.end("run", Ending(EndReason.DONE))
        begun.create(a_run("other"))
        assert (begun.ending("run"), begun.ending("other")) == (Ending(EndReason.DONE), None)

    def test_usage_adds_up_by_role(self, begun):
        unpriced, free = (replace(a_call(1).reply, cost_usd=cost) for cost in (None, 0.0))
        calls = [a_call(1), a_call(1, 1, reply=unpriced), a_call(1, 2, role=Role.CODE), a_call(1, 3, role=Role.CODE)]
        calls += [a_call(1, 4, role=Role.DEBUG, reply=free, model="another:model")]
        for call in calls:
            begun.journal("run", begun.reserve("run", 1, call.index, Spend()), call)
        begun.reserve("run", 1, 5, Spend(300, 0.5))  # no reply, no usage
        assert begun.count_calls("run") == {Role.PLAN: 2, Role.CODE: 2, Role.DEBUG: 1}
        assert begun.usage("run") == {
            Role.PLAN: RoleUsage(2, Usage(200, 40, 120), None, 3.0),  # one unknown price makes the sum unknown
            Role.CODE: RoleUsage(2, Usage(200, 40, 120), 0.5, 3.0),
            Role.DEBUG: RoleUsage(1, Usage(100, 20, 60), 0.0, 1.5),
        }
        assert begun.models("run") == ["another:model", "provider:model"]
