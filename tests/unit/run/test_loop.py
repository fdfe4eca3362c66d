"""Spec section 4 and the run's promises: one attempt, the loop, budgets, stopping, resuming, extending."""

from __future__ import annotations

import asyncio
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from fakes import TASK, AcceptingEvaluator, ContradictingEvaluator, HashEvaluator, PretendModel
from stark.core.chat import Finish, Reply
from stark.core.errors import (
    ModelRefused,
    ModelUnavailable,
    PromptRefused,
    ReplyLost,
    StoreError,
    TaskError,
    UsageError,
)
from stark.core.records import EventKind
from stark.core.settings import RoleSettings
from stark.core.tree import ROOT_ID, Role
from stark.models.open import open_model
from stark.run import api, assembly
from stark.run.loop import Run
from stark.run.methods import TEAM_ROLES
from stark.run.settings_loader import load_settings
from stark.store.lookup import load_replies
from stark.store.open import open_store
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing
from stark_worker.protocol.request import Build

DEVICE = DeviceFacts("pretend device", "pretend", cores=1)


class Bench:
    """A run on a real store with the stand-ins, taken apart so that a test can look at each part."""

    def __init__(self, folder, sets=(), given=None, models=None, evaluator=None, hint=""):
        self.folder, self.events = folder, []
        self.settings = load_settings(sets=["method=stark", "roles.model=fakes:PretendModel", *sets])
        self.evaluator = evaluator or HashEvaluator(self.settings.evaluation)
        self.model = PretendModel(RoleSettings())
        self.models = models or dict.fromkeys(Role, self.model)
        job = api.prepare(self._task(folder), self.settings, folder, hint=hint)
        self.record = replace(assembly.new_run_record(job, DEVICE), given=given)

    def _task(self, folder):
        folder.mkdir(exist_ok=True)
        path = folder / "task.py"
        path.write_text(TASK)
        return path

    @contextmanager
    def run(self, amend=(), listener=None):
        with closing(open_store(self.folder, write=True)) as store:
            if not store.runs():
                store.create(self.record)
            if amend:
                changed = api.change_on_resume(amend)(self.settings)
                store.amend(self.record.id, changed.model_dump(mode="json"))
            run = assembly.assemble(store.runs()[0], store, self.evaluator, self.events.append)
            method, listener = replace(run.method, models=self.models), listener or self.events.append
            yield Run(run.record, run.settings, store, method, self.evaluator, listener)

    def optimize(self, amend=()):
        with self.run(amend) as run:
            return asyncio.run(run.optimize()), list(run.tree), run.store.calls(self.record.id)


def test_algorithm_1_failed_nodes_are_debugged_others_are_planned_and_coded(tmp_path):
    _, nodes, calls = Bench(tmp_path).optimize()
    by_id = {node.id: node for node in nodes}
    roles = {number: [call.role for call in calls if call.number == number] for number in by_id}
    assert len(nodes) == 31  # B = 30, and the root
    for node in nodes[1:]:
        repaired = by_id[node.parent_id].failed
        assert node.role is (Role.DEBUG if repaired else Role.CODE)
        assert roles[node.id] == ([Role.DEBUG] if repaired else [Role.PLAN, Role.CODE])
    assert any(node.role is Role.DEBUG for node in nodes)


def test_a_repair_inherits_plan_and_anchors(tmp_path):
    _, nodes, _ = Bench(tmp_path).optimize()
    by_id = {node.id: node for node in nodes}
    repairs = [node for node in nodes if node.role is Role.DEBUG]
    assert repairs
    assert all(node.plan == by_id[node.parent_id].plan for node in repairs)


def test_every_coded_node_keeps_a_grounded_scaffold_and_its_share_outside(tmp_path):
    _, nodes, _ = Bench(tmp_path).optimize()
    coded = [node for node in nodes if node.role is Role.CODE]
    assert all(node.plan.grounded for node in coded)
    assert {(node.parent_id == ROOT_ID, node.attempt.outside_share) for node in coded} == {(True, None), (False, 0.0)}


def test_the_root_is_evaluated_like_any_other_and_never_the_best(tmp_path):
    result, nodes, _ = Bench(tmp_path, ["budget.attempts=0"]).optimize()
    assert [node.id for node in nodes] == [ROOT_ID]
    assert result.root.runtime_ms == 10.0
    assert (result.best, result.improved, result.reason) == (None, False, "attempts")


def test_the_result_is_the_fastest_correct_node(tmp_path):
    result, nodes, _ = Bench(tmp_path).optimize()
    assert result.best.runtime_ms == min(node.runtime_ms for node in nodes[1:] if not node.failed)
    assert result.speedup == pytest.approx(10.0 / result.best.runtime_ms)
    assert result.source == result.best.source


def test_an_identical_candidate_takes_over_the_report(tmp_path):
    bench = Bench(tmp_path, ["method=sampling", "budget.attempts=4", "evaluation.final=false"])
    _, nodes, _ = bench.optimize()
    assert [node.same_as for node in nodes[1:]] == [None, 1, 1, 1]
    assert len(bench.evaluator.evaluated) == 3  # the root, one candidate, and again in turns with the root
    assert all(node.report == nodes[1].report for node in nodes[1:])


class Mumbling(PretendModel):
    """Never says anything that can be used."""

    async def reply(self, messages, form):
        self.prompts.append(messages[-1].content)
        return Reply(text="hm")


def test_an_unusable_reply_spends_an_attempt_and_is_never_built_upon(tmp_path):
    bench = Bench(tmp_path, ["method=reflexion", "budget.attempts=3"], models={Role.SOLO: Mumbling(RoleSettings())})
    _, nodes, _ = bench.optimize()
    assert [(node.source, node.report.outcome, node.parent_id) for node in nodes[1:]] == [
        (None, Outcome.UNUSABLE_REPLY, ROOT_ID)
    ] * 3


def test_an_unusable_reply_is_sent_back_once_with_the_reason(tmp_path):
    mumbling = Mumbling(RoleSettings())
    sets = ["method=sampling", "budget.attempts=1"]
    Bench(tmp_path, sets, models={Role.SOLO: mumbling}).optimize()
    assert len(mumbling.prompts) == 2
    assert "code" in mumbling.prompts[1].lower()


class Rewriting(PretendModel):
    """A planner that changes the code it should only mark."""

    async def reply(self, messages, form):
        reply = await super().reply(messages, form)
        self.prompts.append(messages[-1].content)
        return replace(reply, text=reply.text.replace("return []", "return [2]"))


def test_a_broken_scaffold_is_sent_back_once_then_the_advice_alone_goes_on(tmp_path):
    planner, coder = Rewriting(RoleSettings()), PretendModel(RoleSettings())
    models = {Role.PLAN: planner, Role.CODE: coder, Role.DEBUG: coder}
    _, nodes, calls = Bench(tmp_path, ["budget.attempts=1"], models=models).optimize()
    assert [call.role for call in calls] == [Role.PLAN, Role.PLAN, Role.CODE]
    assert not nodes[1].plan.grounded
    assert nodes[1].plan.violations
    assert "<<<IMPROVE" not in coder.prompts[0].split("## Advice")[1]
    assert nodes[1].attempt.outside_share is None


@pytest.mark.parametrize(
    ("mode", "asked", "shown"), [("enforced", True, True), ("stripped", True, False), ("off", False, False)]
)
def test_anchors_enforced_stripped_and_off(tmp_path, mode, asked, shown):
    planner, coder = PretendModel(RoleSettings()), PretendModel(RoleSettings())
    models = {Role.PLAN: planner, Role.CODE: coder, Role.DEBUG: coder}
    Bench(tmp_path, [f"anchors.mode={mode}", "budget.attempts=1"], models=models).optimize()
    assert ("<<<IMPROVE BEGIN>>>" in planner.prompts[0]) == asked
    assert ("<<<IMPROVE BEGIN>>>" in coder.prompts[0]) == shown


def test_a_kernel_to_start_from_is_evaluated_first_and_spends_no_attempt(tmp_path):
    given = "class ModelNew:\n    pass\n"
    result, nodes, _ = Bench(tmp_path, ["budget.attempts=2"], given=given).optimize()
    assert [node.role for node in nodes[:2]] == [Role.REFERENCE, Role.GIVEN]
    assert nodes[1].source == given
    assert (len(nodes), result.attempts) == (4, 2)


def test_sampling_sees_no_history_and_reflexion_sees_its_last_attempt(tmp_path):
    for method, seen in (("sampling", False), ("reflexion", True)):
        bench = Bench(tmp_path / method, [f"method={method}", "budget.attempts=3"])
        bench.optimize()
        assert [("## Latest attempt" in prompt) for prompt in bench.model.prompts] == [False, seen, seen]


def test_windows_off_shows_only_the_selected_node_and_the_root(tmp_path):
    _, nodes, calls = Bench(tmp_path, ["windows.enabled=false"]).optimize()
    parents = {node.id: node.parent_id for node in nodes}
    assert all(set(call.window) <= {ROOT_ID, parents[call.number]} for call in calls)


def test_windows_on_show_more_and_never_a_node_that_landed_later(tmp_path):
    calls = Bench(tmp_path).optimize()[2]
    assert all(shown < call.number for call in calls for shown in call.window)
    assert any(len(call.window) > 2 for call in calls)


def test_two_runs_of_the_same_seed_are_the_same_run_and_of_another_are_not(tmp_path):
    first, second, third = (
        Bench(tmp_path / name, [f"seed={seed}"]).optimize()[1] for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == second != third


def test_attempts_in_flight_never_exceed_jobs_and_all_land(tmp_path):
    flying, most = set(), []

    class Slow(HashEvaluator):
        async def evaluate(self, request):
            flying.add(request.candidate_source)
            most.append(len(flying))
            await asyncio.sleep(0.002)
            flying.discard(request.candidate_source)
            return await super().evaluate(request)

    bench = Bench(tmp_path, ["jobs=4"], evaluator=Slow(None))
    _, nodes, _ = bench.optimize()
    assert len(nodes) == 31
    assert 1 < max(most) <= 4


@pytest.mark.parametrize("limit", ["budget.tokens=20000", "budget.usd=0.02"])
@pytest.mark.parametrize("jobs", [1, 6])
def test_a_limit_on_tokens_or_money_holds_and_the_attempt_it_stopped_is_resumable(tmp_path, limit, jobs):
    bench = Bench(
        tmp_path, [limit, f"jobs={jobs}", "roles.plan.max_output_tokens=500", "roles.code.max_output_tokens=500"]
    )
    result, nodes, _ = bench.optimize()
    assert result.reason in ("tokens", "money")
    assert 0 < result.spent.tokens <= 20000
    assert result.spent.usd <= 0.02
    more, after, _ = bench.optimize(["budget.tokens=100000000", "budget.usd=1000"])
    assert len(after) == 31
    assert after[: len(nodes)] == nodes
    assert more.reason == "attempts"


def test_a_limit_on_time_stops_attempts_in_flight(tmp_path):
    class Endless(HashEvaluator):
        async def evaluate(self, request):
            if not request.is_reference:
                await asyncio.sleep(3600)
            return await super().evaluate(request)

    bench = Bench(tmp_path, ["budget.wall_s=0.3", "jobs=3"], evaluator=Endless(None))
    result, nodes, calls = bench.optimize()
    assert result.reason == "wall time"
    assert len(nodes) == 1
    assert len(calls) == 6  # what was said is kept


def test_an_extended_run_is_the_longer_run(tmp_path):
    whole = Bench(tmp_path / "whole", ["budget.attempts=20"]).optimize()[1]
    bench = Bench(tmp_path / "parts", ["budget.attempts=8"])
    bench.optimize()
    assert bench.optimize(["budget.attempts=20"])[1] == whole


def test_stop_lets_attempts_in_flight_land_and_resume_finishes_the_same_run(tmp_path):
    whole = Bench(tmp_path / "whole").optimize()[1]
    bench = Bench(tmp_path / "stopped")

    def stop_at_ten(event):
        if event.kind is EventKind.LANDED and event.number == 10:
            run.stop()

    with bench.run(listener=stop_at_ten) as run:
        result = asyncio.run(run.optimize())
    assert (result.reason, result.attempts) == ("stopped", 10)
    assert bench.optimize()[1] == whole


class Failing(PretendModel):
    """Raises on its nth call."""

    def __init__(self, at, fault):
        super().__init__(RoleSettings())
        self.left, self.fault = at, fault

    async def reply(self, messages, form):
        self.left -= 1
        if self.left == 0:
            raise self.fault
        return await super().reply(messages, form)


@pytest.mark.parametrize("fault", [ModelRefused("no key"), ModelUnavailable("gone"), RuntimeError("a bug")])
def test_a_fault_stops_the_run_which_then_resumes_without_asking_again(tmp_path, fault):
    whole = Bench(tmp_path / "whole").optimize()[1]
    bench = Bench(tmp_path / "broken", models=dict.fromkeys(Role, Failing(12, fault)))
    with pytest.raises(type(fault), match=str(fault)):
        bench.optimize()
    bench.models = dict.fromkeys(Role, bench.model)
    _, nodes, calls = bench.optimize()
    assert nodes == whole
    assert len(bench.model.prompts) == len(calls) - 11  # the eleven replies before the fault are not asked for again


def test_a_replay_answers_by_attempt_and_role_however_often_it_is_killed(tmp_path):
    """A parallel run, replayed by two jobs of which every third evaluation ends in a fault."""
    evaluator = AcceptingEvaluator(None)
    stored = Bench(tmp_path / "stored", ["jobs=2", "budget.attempts=12"], evaluator=evaluator)
    stored.optimize()

    class Dying(AcceptingEvaluator):
        calls = 0

        async def evaluate(self, request):
            Dying.calls += 1
            if Dying.calls % 3 == 0:
                raise RuntimeError("killed")
            return await super().evaluate(request)

    def replay_models():
        settings = RoleSettings(model=f"replay:{stored.folder}")
        return {role: open_model(role, settings, answered=5, load_replies=load_replies) for role in TEAM_ROLES}

    again = Bench(tmp_path / "again", ["jobs=2", "budget.attempts=12", "evaluation.final=false"], evaluator=Dying(None))
    for _ in range(60):
        again.models = replay_models()
        try:
            calls = again.optimize()[2]
            break
        except RuntimeError:
            continue
    with closing(open_store(stored.folder, write=False)) as store:
        kept = store.calls(stored.record.id)
    said = {(call.number, call.role, call.reply.text) for call in kept}
    assert {(call.number, call.role, call.reply.text) for call in calls} == said


def test_a_refused_call_costs_nothing_and_one_of_unknown_end_its_worst(tmp_path):
    faults = [
        ("refused", ModelRefused("no"), 0),
        ("away", ModelUnavailable("gone"), 0),
        ("lost", ReplyLost("cut"), 16_384),
    ]
    for name, fault, kept in faults:
        bench = Bench(tmp_path / name, ["roles.plan.retries=0"], models=dict.fromkeys(Role, Failing(1, fault)))
        with pytest.raises(type(fault)):
            bench.optimize()
        with closing(open_store(bench.folder, write=False)) as store:
            spent = store.spent(bench.record.id).tokens
        assert spent == 0 if not kept else spent > kept


def test_a_lost_reply_is_asked_for_again_and_stays_spent(tmp_path):
    bench = Bench(tmp_path, ["budget.attempts=1"], models=dict.fromkeys(Role, Failing(1, ReplyLost("cut"))))
    result, nodes, calls = bench.optimize()
    assert len(nodes) == 2
    assert result.spent.tokens > 16_384 + sum(call.reply.usage.total for call in calls)


def test_a_lost_reply_never_breaks_a_limit_on_tokens(tmp_path):
    class Losing(PretendModel):
        async def reply(self, messages, form):
            raise ReplyLost("cut")

    bench = Bench(tmp_path, ["budget.tokens=60000"], models=dict.fromkeys(Role, Losing(RoleSettings())))
    result, _, _ = bench.optimize()
    assert (result.reason, result.attempts) == ("tokens", 0)
    assert result.spent.tokens <= 60000


def test_a_refused_prompt_stops_the_run_once_and_is_a_failed_attempt_after_a_resume(tmp_path):
    class Prudish(PretendModel):
        async def reply(self, messages, form):
            self.prompts.append("")
            if len(self.prompts) in (3, 4):
                raise PromptRefused("I do not like this prompt")
            return await super().reply(messages, form)

    bench = Bench(tmp_path, ["budget.attempts=3"], models=dict.fromkeys(Role, Prudish(RoleSettings())))
    with pytest.raises(PromptRefused):
        bench.optimize()
    _, nodes, _ = bench.optimize()
    assert len(nodes) == 4
    refused = [node for node in nodes if "refused the prompt, as a call failed before" in node.report.log]
    assert len(refused) == 1
    assert refused[0].report.outcome is Outcome.UNUSABLE_REPLY


def test_a_prompt_of_an_attempt_that_was_killed_is_not_refused_twice_when_it_is_once(tmp_path):
    class Killing(PretendModel):
        async def reply(self, messages, form):
            raise RuntimeError("killed")

    class Prudish(PretendModel):
        async def reply(self, messages, form):
            raise PromptRefused("I do not like this prompt")

    bench = Bench(tmp_path, ["budget.attempts=3"], models=dict.fromkeys(Role, Killing(RoleSettings())))
    with pytest.raises(RuntimeError):
        bench.optimize()
    bench.models = dict.fromkeys(Role, Prudish(RoleSettings()))
    with pytest.raises(PromptRefused):
        bench.optimize()
    with bench.run() as run:
        assert len(run.tree) == 1, "no attempt was spent on it"


class Choosy(HashEvaluator):
    """Every candidate is faster than those before it, but only the first that has a final holds there. ``kills`` is
    the further final that is the end of all."""

    def __init__(self, settings):
        super().__init__(settings)
        self.held, self.kills = None, 0

    async def evaluate(self, request):
        await super().evaluate(request)
        if request.build is not Build.STOCK:
            return EvalReport(Outcome.OK, Timing((10.0 - 0.1 * len(self.evaluated),)))
        self.held = self.held or request.candidate_source
        if request.candidate_source == self.held:
            return EvalReport(Outcome.OK, Timing((5.0,)), opponent=Timing((10.0,)))
        self.kills -= 1
        if self.kills == 0:
            raise RuntimeError("killed")
        return EvalReport(Outcome.COMPILE_ERROR, log="torch cannot build it")


def test_a_winner_that_held_stays_one_where_no_faster_one_holds_after_an_extension(tmp_path):
    """Even if the run is killed between the finals of those that do not."""
    evaluator = Choosy(load_settings().evaluation)
    bench = Bench(tmp_path, ["budget.attempts=2"], evaluator=evaluator)
    before = bench.optimize()[0]
    assert before.final.holds
    evaluator.kills = 4
    with pytest.raises(RuntimeError, match="killed"):
        bench.optimize(amend=["budget.attempts=10"])
    after = bench.optimize()[0]
    assert after.attempts == 10
    assert (after.best, after.final) == (before.best, before.final)


class Racy(HashEvaluator):
    """Its first final fails; the same kernel would pass the next one. ``kills`` is the call that is the end of all."""

    finals = kills = 0

    async def evaluate(self, request):
        report = await super().evaluate(request)
        if request.build is not Build.STOCK or report.timing is None:
            return report
        self.finals += 1
        if self.finals == self.kills:
            raise RuntimeError("killed")
        return EvalReport(Outcome.WRONG_RESULT, log="a race") if self.finals <= 2 else report


@pytest.mark.parametrize("killed", [False, True])
def test_a_winner_that_was_refuted_is_not_tried_until_it_passes(tmp_path, killed):
    evaluator = Racy(load_settings().evaluation)
    bench = Bench(tmp_path, ["budget.attempts=8"], evaluator=evaluator)
    if killed:
        evaluator.kills = 3
        with pytest.raises(RuntimeError, match="killed"):
            bench.optimize()
    first = bench.optimize()[0]
    with bench.run() as run:
        refuted = run.tree.best
    assert first.final.holds
    assert first.best.id != refuted.id, "or this tests nothing"
    assert [bench.optimize()[0].best.id for _ in range(3)] == [first.best.id] * 3


def test_a_store_that_fails_ends_the_run_and_no_attempt_waits_for_ever(tmp_path):
    with Bench(tmp_path, ["jobs=3", "budget.tokens=60000"]).run() as run:
        reserve = run.store.reserve

        def fail_once(*words):
            run.store.reserve = reserve
            raise StoreError("disk full")

        run.store.reserve = fail_once
        with pytest.raises(StoreError, match="disk full"):
            asyncio.run(asyncio.wait_for(run.optimize(), 20))


def test_twins_in_flight_are_evaluated_once(tmp_path):
    bench = Bench(tmp_path, ["method=sampling", "budget.attempts=4", "jobs=4", "evaluation.final=false"])
    _, nodes, _ = bench.optimize()
    assert len(bench.evaluator.evaluated) == 3
    assert sorted(node.same_as or 0 for node in nodes[1:]) == [0, 1, 1, 1]


class Fading(PretendModel):
    """A planner whose first answer has advice and a bad scaffold, and whose second is empty."""

    async def reply(self, messages, form):
        if len(messages) > 2:
            return Reply(text=" ")
        reply = await super().reply(messages, form)
        return replace(reply, text=reply.text.replace("return []", "return [2]"))


def test_a_worse_second_answer_takes_nothing_away(tmp_path):
    coder = PretendModel(RoleSettings())
    models = {Role.PLAN: Fading(RoleSettings()), Role.CODE: coder, Role.DEBUG: coder}
    _, nodes, _ = Bench(tmp_path, ["budget.attempts=1"], models=models).optimize()
    assert nodes[1].plan.advice.startswith("Change the last line")
    assert nodes[1].source is not None


class Terse(Fading):
    """Its second answer is right, and is too short to follow."""

    async def reply(self, messages, form):
        if len(messages) == 2:
            return await super().reply(messages, form)
        reply = await PretendModel.reply(self, messages, form)
        return replace(reply, text="Fixed:" + reply.text[reply.text.index("\n```") :])


class Reconsidering(Terse):
    """Its second answer is another idea, in fewer words."""

    async def reply(self, messages, form):
        reply = await super().reply(messages, form)
        if len(messages) == 2:
            return replace(reply, text=reply.text.replace("Change the last line", "Change all of it. " * 40))
        other = (
            "Change the last line after all, in one pass over the data, and leave the rest as it is: less may go wrong."
        )
        return replace(reply, text=reply.text.replace("Fixed:", other))


def test_advice_that_comes_with_its_scaffold_takes_the_place_of_longer_advice(tmp_path):
    coder = PretendModel(RoleSettings())
    models = {Role.PLAN: Reconsidering(RoleSettings()), Role.CODE: coder, Role.DEBUG: coder}
    _, nodes, _ = Bench(tmp_path, ["budget.attempts=1"], models=models).optimize()
    assert nodes[1].plan.advice.startswith("Change the last line after all")


def test_advice_stands_where_only_the_scaffold_comes_again(tmp_path):
    coder = PretendModel(RoleSettings())
    models = {Role.PLAN: Terse(RoleSettings()), Role.CODE: coder, Role.DEBUG: coder}
    _, nodes, _ = Bench(tmp_path, ["budget.attempts=1"], models=models).optimize()
    assert nodes[1].plan.advice.startswith("Change the last line")
    assert nodes[1].plan.grounded


def test_time_is_kept_while_an_attempt_goes_on_and_planting_counts(tmp_path, monkeypatch):
    class Slow(HashEvaluator):
        async def evaluate(self, request):
            await asyncio.sleep(0.4)
            return await super().evaluate(request)

    with pytest.raises(UsageError, match="time limit"):
        Bench(tmp_path / "a", ["budget.wall_s=0.1"], evaluator=Slow(None)).optimize()
    monkeypatch.setattr("stark.run.budget.CLOCK_S", 0.05)
    bench = Bench(tmp_path / "b", ["budget.attempts=1"], evaluator=Slow(None))
    seen = []
    with bench.run(listener=lambda event: seen.append(run.store.seconds(bench.record.id))) as run:
        asyncio.run(run.optimize())
    assert any(seconds > 0.3 for seconds in seen[:-1])


def test_a_task_whose_own_model_fails_is_refused_before_anything_is_spent(tmp_path):
    class Broken(HashEvaluator):
        async def evaluate(self, request):
            return EvalReport(Outcome.RUNTIME_ERROR, log="shape mismatch")

    bench = Bench(tmp_path, evaluator=Broken(None))
    with pytest.raises(TaskError, match="shape mismatch"):
        bench.optimize()
    assert bench.model.prompts == []


def test_a_task_that_tests_nothing_is_refused_unless_allowed(tmp_path):
    class Idle(HashEvaluator):
        async def evaluate(self, request):
            report = await super().evaluate(request)
            return replace(report, degenerate="Zeros are accepted.") if request.is_reference else report

    bench = Bench(tmp_path / "refused", evaluator=Idle(None))
    with pytest.raises(TaskError, match="Zeros are accepted"):
        bench.optimize()
    assert bench.model.prompts == []
    allowed = ["evaluation.allow_degenerate=true", "budget.attempts=1"]
    assert len(Bench(tmp_path / "allowed", allowed, evaluator=Idle(None)).optimize()[1]) == 2


def test_a_refused_temperature_is_noted_on_the_node_and_brings_a_strategy_hint(tmp_path):
    class Stubborn(PretendModel):
        takes_temperature = False

        async def reply(self, messages, form):
            return replace(await super().reply(messages, form), notes=("temperature refused",))

    model = Stubborn(RoleSettings())
    _, nodes, _ = Bench(tmp_path, ["budget.attempts=1"], models=dict.fromkeys(Role, model)).optimize()
    assert "plan: temperature refused" in nodes[1].notes
    assert "One direction worth considering" in model.prompts[0]


@pytest.mark.parametrize("finish", [Finish.REFUSED, Finish.PROMPT_TOO_LONG])
def test_a_refusal_is_not_sent_back(tmp_path, finish):
    class Refusing(PretendModel):
        async def reply(self, messages, form):
            self.prompts.append("")
            return Reply(finish=finish)

    model = Refusing(RoleSettings())
    _, nodes, _ = Bench(tmp_path, ["budget.attempts=1"], models=dict.fromkeys(Role, model)).optimize()
    assert len(model.prompts) == 1
    assert nodes[1].report.outcome is Outcome.UNUSABLE_REPLY
    assert finish.value in nodes[1].report.log


def test_a_run_that_stored_fewer_templates_is_resumed_with_todays_for_the_rest(tmp_path):
    bench = Bench(tmp_path, ["budget.attempts=1"])
    older = {key: text for key, text in bench.record.templates.items() if not key.startswith("example")}
    bench.record = replace(bench.record, templates=older)
    assert len(bench.optimize()[1]) == 2


def test_ask_and_tell_can_be_driven_by_hand(tmp_path):
    with Bench(tmp_path, ["budget.attempts=2"]).run() as run:
        assert isinstance(run, Run)

        async def by_hand():
            await run.evaluate_root()
            while ticket := run.ask():
                run.tell(ticket, await run.method.workflow.attempt(ticket, run.context(ticket)))

        asyncio.run(by_hand())
        assert [node.id for node in run.tree] == [0, 1, 2]


def test_a_hint_reaches_every_agent(tmp_path):
    bench = Bench(tmp_path, hint="use blocks of 64")
    bench.optimize()
    assert all("use blocks of 64" in prompt for prompt in bench.model.prompts)


def test_measurements_that_contradict_each_other_claim_nothing(tmp_path):
    bench = Bench(tmp_path, ["budget.attempts=1"], evaluator=ContradictingEvaluator(load_settings().evaluation))
    result, nodes, _ = bench.optimize()
    assert nodes[1].report.opponent, "a leader is timed in turns with the reference"
    assert result.contradiction == "in the search 0.12x to 0.13x, in the final check 1.99x to 2.01x"
    assert not result.improved
