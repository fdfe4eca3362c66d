"""Benchmarks that are killed, extended, or started again with something else: what is refused, and what a report then
says. With the stand-ins, in this process."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace

import pytest

from fakes import TASK, HashEvaluator
from stark.analysis.results import read_results
from stark.bench.cell import GivenSource, make_run_record
from stark.bench.grid import judged_cells, make_grid, settings_factory, with_baselines
from stark.bench.runner import run_grid
from stark.core.errors import PromptRefused, UsageError
from stark.core.records import Final
from stark.core.task import Task
from stark.core.tree import Attempt, Node, Role
from stark.report.header import header_facts
from stark.report.kernelbench import write_eval_results
from stark.report.paper_tables import filled_tables
from stark.store.open import open_store
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing
from stark_worker.protocol.request import Score


class Killed(Exception):
    """The end of everything, in the middle of it."""


def killed_after(count):
    """Lets that many runs end."""
    endings = []

    def on_cell_end(cell, ending, progress):
        endings.append(cell.id)
        if len(endings) == count:
            raise Killed

    return on_cell_end


def grid(*sets, tasks=2, attempts=2, methods=("reflexion",), model="PretendModel", evaluator="HashEvaluator", says=()):
    """Searches on tasks of level 1; ``says`` are comments in the sources of the first of them."""
    comments = [*says, *[""] * (tasks - len(says))]
    found = [
        Task(f"level1/{number}_Task", f"# {comment}\n# {number}\n{TASK}", "", 1, number)
        for number, comment in enumerate(comments, 1)
    ]
    options = {"roles": {"model": f"fakes:{model}"}, "budget": {"attempts": attempts}}
    sets = [f"evaluation.evaluator=fakes:{evaluator}", *sets]
    return make_grid(found, methods, [], 1, settings_factory(None, sets, options))


def run(cells, folder, both_scores=False, on_cell_end=lambda cell, ending, progress: None, signals=False):
    bench = asyncio.run(run_grid(cells, folder, 1, on_cell_end, both_scores, signals))
    return bench, read_results(folder)


def killed(cells, folder, count=1, both_scores=False):
    with pytest.raises(Killed):
        run(cells, folder, both_scores, killed_after(count))
    return read_results(folder)


def endings(results):
    return [run.ending.reason if run.ending else None for run in results]


# -- extended ---------------------------------------------------------------------------------------------------------


def test_an_extension_that_was_killed_counts_for_the_runs_it_reached(tmp_path):
    run(grid(attempts=2), tmp_path)
    results = killed(grid(attempts=4), tmp_path)
    assert [run.metrics.attempts for run in results] == [4, 2]
    assert [run.complete for run in results] == [True, False]
    assert header_facts(results)[0].startswith("1 of 2 runs are complete.")
    assert "Attempts per run (B): 4." in header_facts(results)
    assert [run.complete for run in run(grid(attempts=4), tmp_path)[1]] == [True, True]


def test_a_store_that_an_earlier_version_extended_half_is_not_believed_either(tmp_path):
    """There all settings were changed before the first run went on, and the endings stayed as they were."""
    run(grid(attempts=2), tmp_path)
    with closing(open_store(tmp_path, write=True)) as store:
        for cell in grid(attempts=4):
            store.amend(cell.id, cell.settings.model_dump(mode="json"))
    assert not any(run.complete for run in read_results(tmp_path))
    assert [run.metrics.attempts for run in run(grid(attempts=4), tmp_path)[1]] == [4, 4]


def test_a_raised_limit_reopens_a_run(tmp_path):
    """What one of two runs made with little money is on_cell_end, and counts no more once there is to be more."""
    results = run(grid("budget.usd=0.05", attempts=30), tmp_path)[1]
    assert endings(results) == ["money", "money"]
    made = [run.metrics.attempts for run in results]
    assert [run.allowed_attempts for run in results] == made
    assert 0 < min(made) < 30
    results = killed(grid(attempts=30), tmp_path)
    assert [run.complete for run in results] == [True, False]
    assert endings(results) == ["attempts", "stopped"]


def test_a_smaller_budget_than_was_used_is_refused_and_changes_nothing(tmp_path):
    before = run(grid(attempts=4), tmp_path)[1]
    with pytest.raises(UsageError, match="already has 4 attempts") as refused:
        run(grid(attempts=2), tmp_path)
    assert "--attempts 4 or more" in refused.value.next_step
    assert read_results(tmp_path) == before
    assert [run.budget for run in before] == [4, 4]


@pytest.mark.parametrize("final", ["true", "false"])
def test_a_winner_by_the_other_score_follows_its_search(tmp_path, final):
    """Killed when the first search has ended again: its winner by the other score is still the old one, and counts for
    neither budget. The next start judges it, whether or not it is on_cell_end to again."""

    def cells(attempts):
        return grid(f"evaluation.final={final}", attempts=attempts, tasks=1)

    run(cells(2), tmp_path, both_scores=True)
    results = killed(cells(8), tmp_path, both_scores=True)
    assert {run.kind: run.complete for run in results} == {"search": True, "rescored": False}
    by_kind = {run.kind: run for run in run(cells(8), tmp_path)[1]}
    search, rescored = by_kind["search"], by_kind["rescored"]
    assert rescored.complete
    assert rescored.budget == 8
    assert rescored.speedup() == search.speedup()
    fastest = min((each for each in search.judgements[1:] if each.runtime_ms), key=lambda each: each.runtime_ms)
    assert rescored.judgements[-1].id == fastest.id


def test_a_winner_by_the_other_score_had_the_attempts_of_its_search(tmp_path):
    results = run(grid("budget.usd=0.03", attempts=30, tasks=1), tmp_path, both_scores=True)[1]
    rescored, search = sorted(results, key=lambda run: run.kind)
    assert rescored.allowed_attempts == search.allowed_attempts == search.metrics.attempts < 30


# -- killed -----------------------------------------------------------------------------------------------------------


def test_a_report_on_half_a_grid_says_so(tmp_path):
    results = killed(grid(tasks=4, methods=("reflexion", "sampling")), tmp_path, count=3)
    on_cell_end = " ".join(header_facts(results))
    assert on_cell_end.startswith("3 of 8 runs are complete.")
    assert "not comparable: reflexion 2, sampling 1; 1 in common." in on_cell_end
    assert [table.name for table in filled_tables(results)]
    assert len(write_eval_results(tmp_path / "out", results)) == 2


def test_winners_by_the_other_score_are_missed_too(tmp_path):
    results = killed(with_baselines(grid(), True), tmp_path, both_scores=True)
    assert header_facts(results)[0].startswith("1 of 4 runs are complete.")


def test_a_run_that_was_killed_before_its_final_does_not_count(tmp_path):
    with pytest.raises(RuntimeError, match="switched off"):
        run(grid(tasks=1, evaluator="MortalEvaluator"), tmp_path)
    (result,) = read_results(tmp_path)
    assert (result.metrics.attempts, result.metrics.success, result.ending) == (2, True, None)
    assert not result.complete


# -- interrupted ------------------------------------------------------------------------------------------------------


def test_a_search_ends_as_if_it_had_never_been_stopped_or_extended(tmp_path):
    """What held in a final before there was anything faster is no further chance."""
    cells = grid(tasks=8, attempts=8, model="InterruptedModel", evaluator="StrictEvaluator")
    bench, results = run(cells, tmp_path / "stopped", signals=True)
    assert bench.stopped
    assert endings(results) == ["stopped", *[None] * 7]
    assert results[0].final is None
    _, stopped = run(cells, tmp_path / "stopped")
    run(grid(tasks=8, attempts=2, model="InterruptedModel", evaluator="StrictEvaluator"), tmp_path / "extended")
    _, extended = run(cells, tmp_path / "extended")
    _, whole = run(cells, tmp_path / "whole")
    found = [[each.metrics for each in results] for results in (whole, stopped, extended)]
    assert found[0] == found[1] == found[2]
    assert {each.metrics.success for each in whole} == {True, False}


def test_a_stop_while_a_reference_is_judged_begins_no_attempt(tmp_path, monkeypatch):
    (tmp_path / "order").write_text("Model")
    monkeypatch.setenv("CTRL_C", str(tmp_path / "order"))
    cells = grid(tasks=2, evaluator="InterruptedEvaluator")
    bench, results = run(cells, tmp_path / "store", signals=True)
    assert bench.stopped
    assert endings(results) == ["stopped", None]
    assert [run.usage for run in results] == [{}, {}], "no model was asked"
    assert endings(run(cells, tmp_path / "store")[1]) == ["attempts", "attempts"]


def test_a_stop_leaves_kernels_of_another_tool_for_the_next_start(tmp_path, monkeypatch):
    (tmp_path / "order").write_text("Model")
    monkeypatch.setenv("CTRL_C", str(tmp_path / "order"))
    settings = settings_factory(None, ["evaluation.evaluator=fakes:InterruptedEvaluator"], {})("stark", 0, ())
    given = {(1, 1): [GivenSource(number, f"sample {number}", f"x = {number}") for number in (1, 2, 3)]}
    cells = judged_cells([Task("level1/1_Task", TASK, "", 1, 1)], given, "theirs", settings)
    stopped = run(cells, tmp_path / "store", signals=True)[1]
    assert sorted(len(run.judgements) for run in stopped) == [0, 1], "a reference, by the first of two scores"
    assert [run.metrics.attempts for run in run(cells, tmp_path / "store")[1]] == [3, 3]


# -- another experiment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        *("evaluation.score=kernelbench", "evaluation.kernelbench_version=v0.1", "evaluation.tf32=true"),
        *("evaluation.precision=bf16", "roles.plan.model=fakes:HeldModel", "search.epsilon=0.9", "jobs=8"),
    ],
)
@pytest.mark.parametrize("method", ["reflexion", "stark"])
def test_the_searches_of_a_store_have_one_set_of_rules(tmp_path, rule, method):
    """Also by other methods, which would be compared, and on other tasks: they would share rows."""
    run(grid(), tmp_path)
    with pytest.raises(UsageError, match="other settings") as refused:
        run(grid(rule, tasks=3, methods=(method,))[2:], tmp_path)
    assert rule.partition("=")[0].rpartition(".")[2] in refused.value.message
    assert len(read_results(tmp_path)) == 2


@pytest.mark.parametrize("rule", ["search.policy=greedy", "windows.enabled=true"])
def test_a_method_of_a_store_keeps_its_policy_and_its_windows(tmp_path, rule):
    """Other methods have others."""
    run(grid(), tmp_path)
    with pytest.raises(UsageError, match=rule.partition("=")[0]):
        run(grid(rule, tasks=3)[2:], tmp_path)
    run(grid(rule, tasks=1, methods=("stark",)), tmp_path)


def test_further_methods_go_into_a_store_with_what_they_bring_along(tmp_path):
    run(grid(), tmp_path)
    _, results = run(grid(methods=("reflexion", "sampling", "stark", "search-agent", "ma-only")), tmp_path)
    assert len(results) == 10


def test_a_store_belongs_to_one_version_of_what_compiles_and_computes(tmp_path, monkeypatch):
    facts = DeviceFacts("pretend device", "pretend", cores=1, toolchain={"python": "3.11.1", "torch": "2.6"})

    async def device(self):
        return facts

    monkeypatch.setattr(HashEvaluator, "device", device)
    run(grid(tasks=1), tmp_path)
    facts = replace(facts, toolchain={"python": "3.12.0", "torch": "2.6"})
    run(grid(), tmp_path)
    facts = replace(facts, toolchain={"python": "3.12.0", "torch": "2.9"})
    with pytest.raises(UsageError, match=r"torch 2\.6, here it is 2\.9"):
        run(grid(tasks=3), tmp_path)
    assert "Device: pretend device (torch 2.6)." in header_facts(read_results(tmp_path))[0]


def test_kernels_from_a_folder_named_like_a_method_are_not_taken_for_its_own():
    cell = grid()[0]
    with pytest.raises(UsageError, match="the name of one of"):
        judged_cells([cell.task], {(1, 1): [GivenSource(1, "sample 0", TASK)]}, "stark", cell.settings)


def test_an_impossible_switch_is_refused_before_anything_is_stored():
    with pytest.raises(UsageError, match="no policy called 'nope'"):
        make_grid([grid()[0].task], ["stark"], ["search.policy=nope"], 1, settings_factory(None, [], {}))


def test_a_winner_has_the_final_of_its_own_search(tmp_path):
    """A store of an earlier version may hold searches by either score."""
    results = run(grid(tasks=1), tmp_path, both_scores=True)[1]
    (cell,) = grid("evaluation.score=kernelbench", tasks=1)
    failed = EvalReport(Outcome.CRASH)
    with closing(open_store(tmp_path, write=True)) as store:
        record = make_run_record(cell, store.runs()[0].device)
        store.create(record)
        store.finish(record.id, Node(0, None, Attempt(Role.REFERENCE, TASK, EvalReport(Outcome.OK, Timing((10.0,))))))
        store.confirm(record.id, Final(1, Score.KERNELBENCH, failed, failed))
    again = [run for run in read_results(tmp_path) if run.kind == "rescored"]
    assert again == [run for run in results if run.kind == "rescored"]
    assert again[0].speedup() is not None


def judged(folder, *sources, on_cell_end=lambda cell, ending, progress: None):
    """Kernels for the second of two tasks, the first of them for the other as well."""
    tasks = [Task(f"level1/{number}_Task", TASK, "", 1, number) for number in (1, 2)]
    settings = settings_factory(None, ["evaluation.evaluator=fakes:HashEvaluator"], {})("stark", 0, ())
    given = [GivenSource(number, f"sample {number - 1}", source) for number, source in enumerate(sources, 1)]
    cells = judged_cells(tasks, {(1, 2): given, (1, 1): given[:1]}, "theirs", settings)
    return run(cells, folder, on_cell_end=on_cell_end)[1]


@pytest.mark.parametrize(("now", "why"), [(("x = 1", "x = 5"), "has changed"), (("x = 1",), "was removed")])
def test_other_kernels_of_the_same_names_are_not_taken_for_those_that_were_judged(tmp_path, now, why):
    before = judged(tmp_path, "x = 1", "x = 3")
    with pytest.raises(UsageError, match=f"theirs for level1/2_Task, sample 1, {why}") as refused:
        judged(tmp_path, *now)
    assert "--store" in refused.value.next_step
    assert read_results(tmp_path) == before == judged(tmp_path, "x = 1", "x = 3")


def test_kernels_that_came_later_are_missed_until_they_are_judged(tmp_path):
    judged(tmp_path, "x = 1")
    with pytest.raises(Killed):
        judged(tmp_path, "x = 1", "x = 3", on_cell_end=killed_after(1))
    assert [run.complete for run in read_results(tmp_path)].count(False) == 1
    assert all(run.complete for run in judged(tmp_path, "x = 1", "x = 3"))


# -- faults and refusals ----------------------------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch, tmp_path):
    monkeypatch.setenv("REPAIRED", str(tmp_path / "never"))
    return tmp_path / "store"


def test_one_task_that_always_faults_does_not_delay_the_others(broken):
    methods = ("reflexion", "sampling", "search-agent", "ma-only")
    bench, results = run(grid(evaluator="TroubledEvaluator", methods=methods, says=["fault"]), broken)
    assert [run.complete for run in results] == [False] * 4 + [True] * 4
    assert endings(results)[:4] == ["fault"] * 4
    assert bench.fault is not None
    assert not bench.stopped


def test_what_faulted_in_an_earlier_session_waits_until_the_others_are_through(broken):
    cells = grid(evaluator="TroubledEvaluator", tasks=5, methods=("reflexion", "sampling"), says=["fault"] * 3)
    bench, results = run(cells, broken)
    assert bench.stopped
    assert sum(run.complete for run in results) == 0
    bench, results = run(cells, broken)
    assert bench.stopped
    assert [run.complete for run in results] == [False] * 6 + [True] * 4


def test_a_prompt_that_is_refused_is_a_failed_attempt_where_others_were_answered(tmp_path):
    bench, results = run(grid(model="PrudishModel", says=["", "indecent"], attempts=3), tmp_path)
    assert bench.fault is None
    assert endings(results) == ["attempts", "attempts"]
    assert [run.metrics.success for run in results] == [True, False]
    with closing(open_store(tmp_path, write=False)) as store:
        nodes = store.nodes(results[1].run_id)[1:]
    assert [(node.report.outcome, node.report.log) for node in nodes] == [
        (Outcome.UNUSABLE_REPLY, "The model refused the prompt: I do not like this prompt.")
    ] * 3


def test_a_model_that_never_answered_is_a_fault(tmp_path):
    """A setting that it does not take is refused in the same words."""
    bench, results = run(grid(model="PrudishModel", says=["indecent"] * 4, tasks=4, attempts=3), tmp_path)
    assert isinstance(bench.fault, PromptRefused)
    assert endings(results) == ["fault"] * 3 + [None]
    assert [run.metrics.attempts for run in results if run.metrics] == [0] * 3


def test_a_prompt_refused_before_any_answer_continues_at_the_next_start(tmp_path):
    cells = grid(model="PrudishModel", says=["indecent", ""], attempts=3)
    assert endings(run(cells, tmp_path)[1]) == ["fault", "attempts"]
    assert [run.metrics.attempts for run in run(cells, tmp_path)[1]] == [3, 3]
