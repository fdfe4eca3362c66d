"""The method informed: what is in flight, duplicates, the planner's choice of a base, stops, kills and equal trees."""

from __future__ import annotations

import asyncio
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from fakes import TASK, AcceptingEvaluator, HashEvaluator, PretendModel
from stark.core.chat import Reply
from stark.core.records import EndReason, EventKind
from stark.core.settings import BudgetSettings, RoleSettings
from stark.core.tree import ROOT_ID, Attempt, Node, Role, Tree
from stark.run import api, assembly
from stark.run.loop import Run
from stark.run.methods import with_stops
from stark.run.settings_loader import load_settings
from stark.search.stops import count_without_gain, find_stop
from stark.store.open import open_store
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing

DEVICE = DeviceFacts("pretend device", "pretend", cores=1)


class Trial:
    """A run of the method informed on a real store, with stand-ins for model and evaluator."""

    def __init__(self, folder, sets=(), model=None, evaluator=None, task=TASK):
        folder.mkdir(exist_ok=True)
        (folder / "task.py").write_text(task)
        self.folder, self.events, self.model = folder, [], model or PretendModel(RoleSettings())
        self.settings = load_settings(sets=["roles.model=fakes:PretendModel", "budget.attempts=12", *sets])
        self.evaluator = evaluator or HashEvaluator(self.settings.evaluation)
        self.record = assembly.new_run_record(api.prepare(folder / "task.py", self.settings, folder), DEVICE)

    @contextmanager
    def run(self):
        with closing(open_store(self.folder, write=True)) as store:
            if not store.runs():
                store.create(self.record)
            run = assembly.assemble(store.runs()[0], store, self.evaluator, self.events.append)
            method = replace(run.method, models=dict.fromkeys(Role, self.model))
            yield Run(run.record, run.settings, store, method, self.evaluator, self.events.append)

    def optimize(self):
        with self.run() as run:
            result = asyncio.run(run.optimize())
            return result, list(run.tree), run.store.calls(self.record.id)


def plans(calls):
    return {call.number: call.messages[1].content for call in calls if call.role is Role.PLAN}


def test_it_is_the_default_and_the_papers_method_keeps_its_name():
    settings = load_settings()
    assert (settings.method, settings.search.policy) == ("informed", "root-first")
    assert load_settings(sets=["method=stark"]).search.policy == "epsilon-greedy"


def test_the_first_attempts_start_from_the_root_each_in_another_direction(tmp_path):
    _, nodes, calls = Trial(tmp_path).optimize()
    assert [node.parent_id for node in nodes[1:4]] == [ROOT_ID] * 3
    assert any(node.parent_id != ROOT_ID for node in nodes[4:])
    asked = [line for number in (1, 2, 3) for line in plans(calls)[number].splitlines() if "Direction of this" in line]
    assert len(set(asked)) == 3


def test_random_choices_depend_on_the_task(tmp_path):
    first, same = (Trial(tmp_path / name).optimize()[1] for name in ("a", "b"))
    other = Trial(tmp_path / "c", task=f"# another task\n{TASK}").optimize()[1]
    assert first == same
    assert [node.parent_id for node in first] != [node.parent_id for node in other]


def test_prompts_of_attempts_in_flight_from_one_base_differ_by_what_is_in_flight(tmp_path):
    class Uneven(HashEvaluator):
        async def evaluate(self, request):
            await asyncio.sleep(0.02 * (len(self.evaluated) % 3))
            return await super().evaluate(request)

    calls = Trial(tmp_path, ["jobs=3"], evaluator=Uneven(None)).optimize()[2]
    asked = plans(calls)
    assert len(set(asked.values())) == len(asked)
    assert "## In flight" not in asked[1]
    assert "#1: asked to " in asked[2]
    assert "#1: asked to " in asked[3]
    assert "#2: asked to " in asked[3]
    named = [prompt for prompt in asked.values() if ": variant " in prompt.partition("## In flight")[2]]
    assert named, "a later attempt is told the idea of one whose plan is known"


def test_a_killed_run_is_the_same_run(tmp_path):
    whole = Trial(tmp_path / "whole").optimize()
    calls = 0

    class Dying(PretendModel):
        async def reply(self, messages, form):
            nonlocal calls
            calls += 1
            if calls % 3 == 0:
                raise RuntimeError("killed")
            return await super().reply(messages, form)

    trial = Trial(tmp_path / "killed", model=Dying(RoleSettings()))
    for _ in range(40):
        try:
            parts = trial.optimize()
            break
        except RuntimeError:
            continue
    assert parts[1] == whole[1]
    assert plans(parts[2]) == plans(whole[2])


def test_what_was_in_flight_is_stored_so_a_killed_parallel_run_asks_the_same_again(tmp_path):
    class Held(PretendModel):
        async def reply(self, messages, form):
            self.prompts.append(messages[1].content)
            raise RuntimeError("killed")

    held = Held(RoleSettings())
    trial = Trial(tmp_path, ["jobs=3"], model=held)
    with pytest.raises(RuntimeError):
        trial.optimize()
    with closing(open_store(tmp_path, write=False)) as store:
        tickets = store.unfinished(trial.record.id)
    assert [[other.number for other in ticket.in_flight] for ticket in tickets] == [[], [1], [1, 2]]
    first = list(held.prompts)
    held.prompts.clear()
    with pytest.raises(RuntimeError):
        trial.optimize()
    assert held.prompts == first


class Same(PretendModel):
    """Always answers the same, with other comments and layout."""

    async def reply(self, messages, form):
        self.prompts.append(messages[1].content)
        if form.name == "plan":
            return Reply(text="Idea: the only one\nRegions: forward\n\nAdd one.")
        source = TASK.replace("class Model", "class ModelNew") + f"# comment {len(self.prompts)}\n"
        return Reply(text=f"Done.\n\n```python\n{source}```")


def test_a_model_that_always_answers_the_same_is_asked_again_and_then_counted_as_a_duplicate(tmp_path):
    model, evaluator = Same(RoleSettings()), AcceptingEvaluator(None)
    built = []

    async def evaluate(request):
        built.append(request.candidate_source)
        return await AcceptingEvaluator.evaluate(evaluator, request)

    evaluator.evaluate = evaluate
    _, nodes, calls = Trial(
        tmp_path, ["budget.attempts=4", "evaluation.final=false"], model=model, evaluator=evaluator
    ).optimize()
    assert [node.same_as for node in nodes] == [None, None, 1, 1, 1]
    assert len(set(built)) == 2, "the reference and one candidate"
    roles = [call.role for call in calls if call.number == 2]
    assert roles == [Role.PLAN, Role.CODE, Role.PLAN, Role.CODE]
    again = [call.messages[1].content for call in calls if call.number == 2][2]
    assert 'Your plan "the only one" led to code' in again
    assert "same code as #1" in plans(calls)[3]


class Choosing(PretendModel):
    """Plans on the bases that ``wanted`` names."""

    wanted = "#1, #2"

    async def reply(self, messages, form):
        reply = await super().reply(messages, form)
        if form.name == "plan" and "## Base: #3" in messages[1].content:
            return replace(reply, text=reply.text.replace("Regions:", f"Base: {self.wanted}\nRegions:"))
        return reply


class Improving(HashEvaluator):
    """Every candidate is faster than the one before."""

    async def evaluate(self, request):
        await super().evaluate(request)
        return EvalReport(Outcome.OK, Timing((10.0 / len(self.evaluated),)))


def test_the_planner_may_build_on_a_merge_of_two_others_and_the_coder_sees_both(tmp_path):
    trial = Trial(
        tmp_path,
        ["budget.attempts=4", "search.epsilon=0", "evaluation.final=false"],
        model=Choosing(RoleSettings()),
        evaluator=Improving(None),
    )
    _, nodes, calls = trial.optimize()
    assert nodes[4].parent_id == 1
    assert nodes[4].plan.bases == (1, 2)
    assert nodes[4].plan.grounded
    (coded,) = [call.messages[1].content for call in calls if call.number == 4 and call.role is Role.CODE]
    assert "## Base: #1" in coded
    assert "## #2: " in coded
    assert nodes[2].source in coded


def test_a_base_that_does_not_exist_is_sent_back_and_then_ignored(tmp_path):
    model = Choosing(RoleSettings())
    model.wanted = "#77"
    trial = Trial(
        tmp_path,
        ["budget.attempts=4", "search.epsilon=0", "evaluation.final=false"],
        model=model,
        evaluator=Improving(None),
    )
    nodes = trial.optimize()[1]
    assert nodes[4].parent_id == 3
    assert any("#77: there is no such attempt" in note for note in nodes[4].notes)


def test_scaffolds_are_made_by_the_machine_and_mean_nothing_at_the_root(tmp_path):
    _, nodes, calls = Trial(tmp_path, evaluator=Improving(None)).optimize()
    for node in nodes[1:]:
        at_root = node.parent_id == ROOT_ID
        assert (node.plan.scaffold is None) is at_root
        assert (node.attempt.outside_share is None) is at_root
        assert not node.plan.violations
    coded = [call.messages[1].content for call in calls if call.role is Role.CODE]
    assert "<<<IMPROVE BEGIN>>>" in coded[-1]
    assert coded[-1].count("class ModelNew") == 1, "the source stands there once"


# -- stops --------------------------------------------------------------------------------------------------------


def grown(*times):
    tree = Tree([Node(ROOT_ID, None, Attempt(Role.REFERENCE, TASK, EvalReport(Outcome.OK, Timing((10.0,)))))])
    for number, ms in enumerate(times, 1):
        report = EvalReport(Outcome.OK, Timing((ms,))) if ms else EvalReport(Outcome.CRASH)
        tree.add(Node(number, ROOT_ID, Attempt(Role.CODE, f"source {number}", report)))
    return tree


@pytest.mark.parametrize(
    ("times", "count"), [((), 0), ((5, 6, None, 7), 3), ((5, 4.97), 1), ((5, 6, 6, 4), 0), ((11, 12), 2)]
)
def test_a_gain_must_be_worth_the_name(times, count):
    assert count_without_gain(grown(*times)) == count


def test_a_stop_needs_a_limit_a_best_and_for_the_bound_a_bound():
    budget = BudgetSettings(stop_at_bound=0.95, stop_after=3)
    assert find_stop(grown(5, 6, 6), budget) is None
    assert find_stop(grown(5, 6, 6, 6), budget) is EndReason.PLATEAU
    assert find_stop(grown(5, 6, 6, 6), BudgetSettings()) is None
    assert find_stop(grown(None, None, None, None), budget) is None
    assert find_stop(grown(5), budget, bound_ms=4.8) is EndReason.BOUND
    assert find_stop(grown(5), budget, bound_ms=4.0) is None


def test_a_plateau_ends_a_run_says_so_and_can_be_resumed_without(tmp_path):
    trial = Trial(tmp_path, ["budget.stop_after=3"], evaluator=AcceptingEvaluator(None))
    result, nodes, _ = trial.optimize()
    assert (result.reason, len(nodes)) == (EndReason.PLATEAU, 5)
    said = [event.text for event in trial.events if event.kind is EventKind.NOTE]
    assert any("no gain" in text and "--stop-after 0" in text for text in said)
    assert trial.optimize()[0].reason is EndReason.PLATEAU
    with closing(open_store(tmp_path, write=True)) as store:
        changed = api.change_on_resume(["budget.stop_after=0"])(trial.settings)
        store.amend(trial.record.id, changed.model_dump(mode="json"))
    result, nodes, _ = trial.optimize()
    assert (result.reason, len(nodes)) == (EndReason.DONE, 13)


def test_stops_are_on_for_the_default_method_of_optimize_alone():
    assert with_stops(load_settings()).budget.stop_after == 3
    assert with_stops(load_settings(sets=["budget.stop_after=0"])).budget.stop_after == 0
    assert load_settings().budget.stop_after is None, "a benchmark"
    assert with_stops(load_settings(sets=["method=stark"])).budget.stop_after is None
