"""Tables, figures and comparisons from results whose figures are known."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark.analysis.comparison import compare, format_p
from stark.analysis.groups import group_runs
from stark.analysis.metrics import compute_metrics
from stark.analysis.published import TABLE_1
from stark.analysis.results import RunResult
from stark.core.chat import Usage
from stark.core.errors import UsageError
from stark.core.records import Ending, EndReason, Final, RoleUsage
from stark.core.table_files import read_rows
from stark.core.tree import Judgement, Role
from stark.report.comparison_tables import comparison_tables, describe_store
from stark.report.figures import draw_figures
from stark.report.files import format_html, format_markdown, write_report
from stark.report.header import header_facts
from stark.report.kernelbench import runs_scored_by_mean, write_eval_results
from stark.report.paper_tables import filled_tables
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Phases, Timing
from stark_worker.protocol.request import Score

DEFAULT, TUNED = "torch.compile default", "torch.compile max-autotune"
BASELINES = {DEFAULT: 5.0, TUNED: 4.0}


def a_result(number=1, method="stark", times=(20.0, None, 5.0), **changes) -> RunResult:
    """A run on a task whose reference takes 10 ms; None stands for an attempt that did not compile."""
    made = [
        Judgement(place, Role.CODE, Outcome.OK if ms else Outcome.COMPILE_ERROR, ms, 2.0)
        for place, ms in enumerate(times, 1)
    ]
    judgements = [Judgement(0, Role.REFERENCE, Outcome.OK, 10.0), *made]
    result = RunResult(
        run_id=f"{number} {method} {changes.get('seed', 0)}",
        kind="search",
        task=f"level1/{number}_Task",
        level=1,
        number=number,
        method=method,
        base_method=method.partition(" (")[0],
        seed=0,
        score="verified",
        rules=Score.KERNELBENCH if str(changes.get("score")).startswith("kernelbench") else Score.VERIFIED,
        budget=len(times),
        metrics=compute_metrics(judgements),
        ending=Ending(EndReason.DONE),
        degenerate="",
        usage={Role.PLAN: RoleUsage(2, Usage(100, 10), 0.5, 3.0), Role.CODE: RoleUsage(3, Usage(200, 20), 0.25, 4.0)},
        evaluation_s=6.0,
        wall_s=60.0,
        judgements=tuple(judgements),
        baselines={**BASELINES, "eager": 10.0},
        device="a device",
    )
    return replace(result, **changes)


def a_final(ms, opponent_ms=12.0, node_id=3) -> Final:
    """The last word on a winner: None for one that does not hold."""
    held = (
        EvalReport(Outcome.OK, Timing((ms,)), opponent=Timing((opponent_ms,)))
        if ms
        else EvalReport(Outcome.WRONG_RESULT)
    )
    return Final(node_id, Score.VERIFIED, held, EvalReport(Outcome.CRASH))


def confirmed(run: RunResult, final: Final) -> RunResult:
    return replace(run, final=final, metrics=compute_metrics(run.judgements, final))


def rows_of(results, name):
    (table,) = (table for table in filled_tables(results) if table.name == name)
    return table.records()


def test_a_report_names_the_models_of_its_runs_and_which_are_no_llm():
    runs = [a_result(1, models=("playbook:7",)), a_result(2, models=("openai:gpt-5", "playbook:7")), a_result(3)]
    (told,) = [fact for fact in header_facts(runs) if "models" in fact]
    assert told == "Chat models: openai:gpt-5, playbook:7 (no LLM: a library of moves)."
    assert "Chat models: none." in header_facts([a_result(1)])


def test_table_1_has_our_figures_and_the_papers():
    ours, theirs = rows_of([a_result(1), a_result(2, times=(None, None))], "table-1")
    assert (ours["tasks"], ours["success"]) == (2, 0.5)
    assert (ours["fast_1 eager"], ours["fast_1 compile"], ours["fast_1 max-autotune"]) == (0.5, 0.5, 0.0)
    assert (ours["speed eager"], ours["speed compile"], ours["speed max-autotune"]) == (2.0, 1.0, 0.8)
    assert theirs["score"] == "the paper"
    assert (theirs["success"], theirs["speed eager"]) == (1.0, TABLE_1[1, "stark"].speed[0])


def test_a_baseline_that_was_not_measured_is_left_open():
    row = rows_of([a_result(baselines={"eager": 10.0})], "table-1")[0]
    assert (row["fast_1 eager"], row["fast_1 compile"], row["speed compile"]) == (1.0, None, None)


def test_columns_over_fewer_runs_say_over_how_many():
    """torch.compile cannot run one of two tasks."""
    eager = {"eager": 10.0}
    failed = a_result(2, times=(1.0,), baselines={**eager, TUNED: 4.0}, failed_baselines={DEFAULT: "compile error"})
    results = [a_result(1), failed, a_result(3, baselines={**eager, DEFAULT: 5.0, TUNED: 4.0})]
    ours, theirs = rows_of(results, "table-1")
    assert (ours["runs"], ours["speed compile"], ours["runs compile"]) == (3, 1.0, 2)
    assert "runs max-autotune" not in ours, "every task has it"
    assert theirs["runs compile"] is None
    assert rows_of(results, "table-3")[0]["runs compile"] == 2
    assert [row["runs"] for row in rows_of(results, "averages")] == [3, 2, 3]
    (table,) = (table for table in filled_tables(results) if table.name == "table-1")
    assert "Not every task has a time of compile" in table.note
    assert "runs compile" not in rows_of([a_result(1)], "table-1")[0]


def test_baselines_without_a_time_are_listed():
    eager = {"eager": 10.0}
    failed = a_result(2, baselines={**eager, TUNED: 4.0}, failed_baselines={DEFAULT: "compile error"})
    late = a_result(3, baselines={**eager, DEFAULT: 5.0})
    found = [(row["task"], row["baseline"], row["why"]) for row in rows_of([a_result(1), failed, late], "baselines")]
    assert found == [("level1/2_Task", DEFAULT, "compile error"), ("level1/3_Task", TUNED, "not measured")]
    unasked = [a_result(number, baselines=eager) for number in (1, 2)]
    assert "baselines" not in {table.name for table in filled_tables(unasked)}, "nobody wanted them"


def test_a_final_has_the_last_word_on_speed_and_success():
    """The search believed in 5 ms against 10."""
    held, lost = confirmed(a_result(1), a_final(8.0)), confirmed(a_result(2), a_final(None))
    row = rows_of([held, lost], "table-1")[0]
    assert (row["success"], row["fast_1 eager"], row["speed eager"]) == (0.5, 0.5, 1.5)
    assert (row["speed compile"], row["speed max-autotune"]) == (0.75, pytest.approx(0.6))
    (row,) = rows_of([held, lost], "endings")
    assert (row["solved"], row["winner not confirmed"], row["no correct kernel"]) == (1, 1, 0)
    (row,) = rows_of([held, lost], "so-far")
    assert row["after 3"] == pytest.approx(2.0), "a curve is the search's own"
    assert rows_of([held, confirmed(a_result(1, "sampling"), a_final(12.0))], "figure-1")[0]["mean"] == 1.5


def test_a_report_says_which_speed_ups_no_final_confirms():
    held, lost = confirmed(a_result(1), a_final(8.0)), confirmed(a_result(2), a_final(None))
    (fact,) = [fact for fact in header_facts([held]) if "final check" in fact]
    assert fact == "1 winners passed the final check, timed in turns with eager."
    results = [held, a_result(3), lost, a_result(4, times=(None,))]
    (fact,) = [fact for fact in header_facts(results) if "final check" in fact]
    assert "; 1 had no final check and count with the search's best time" in fact
    assert "; 1 runs had a winner that was not confirmed" in fact


def test_table_2_counts_attempts():
    row = rows_of([a_result(times=(1.0, None, None, 2.0))], "table-2")[0]
    assert (row["compiled"], row["correct"], row["correct of compiled"]) == (0.5, 0.5, 1.0)


def test_table_3_is_level_3_where_there_is_one():
    results = [a_result(method=name, level=level) for name in ("stark", "ma-only", "reflexion") for level in (2, 3)]
    assert {(row["level"], row["method"]) for row in rows_of(results, "table-3")} == {("3", "ma-only"), ("3", "stark")}


def test_table_3_is_about_our_own_searches():
    judged = a_result(1, "theirs", kind="judged")
    results = [a_result(1), a_result(1, "stark (anchors off)"), a_result(1, "reflexion"), judged]
    assert [row["method"] for row in rows_of(results, "table-3")] == ["stark", "stark (anchors off)"]
    assert "theirs" in [row["method"] for row in rows_of(results, "table-1")]
    assert "table-3" not in [table.name for table in filled_tables([judged])]


def test_figure_1_pairs_runs_of_the_same_task_and_seed():
    results = [
        a_result(1, times=(2.0,)),
        a_result(1, times=(4.0,), seed=1),
        a_result(1, "sampling", times=(8.0,)),
        a_result(1, "sampling", times=(None,), seed=1),
        a_result(2, "sampling", times=(1.0,)),
    ]
    (row,) = rows_of(results, "figure-1")
    assert (row["method"], row["pairs"], row["mean"], row["published"]) == ("sampling", 1, 4.0, "10.7x")


def test_averages_say_how_failed_tasks_count():
    results = [a_result(1, times=(10.0,)), a_result(2, times=(2.5,)), a_result(3, times=(None,))]
    row = rows_of(results, "averages")[0]
    assert (row["mean"], row["geometric mean"], row["median"], row["failed"]) == (2.5, 2.0, 2.5, 1)
    assert row["geometric mean, at least 1"] == pytest.approx(4 ** (1 / 3))


def test_a_slower_kernel_counts_as_none_where_what_a_user_keeps_is_counted():
    slow, failed = a_result(1, times=(20.0,)), a_result(1, times=(None,))
    for run in (slow, failed):
        assert rows_of([run], "averages")[0]["geometric mean, at least 1"] == 1.0
        assert spread_of([run], "speed, geometric mean")["value"] == 1.0
        assert rows_of([run], "so-far")[0]["after 1"] == 1.0
        assert rows_of([run, rescored(1, 20.0)], "scores")[0]["speed, verified"] == 1.0
    assert rows_of([slow], "table-1")[0]["speed eager"] == 0.5, "the paper's columns are over kernels"
    assert rows_of([slow], "averages")[0]["geometric mean"] == 0.5


def test_a_method_that_solved_nothing_is_reported():
    results = [a_result(1, times=(None,)), rescored(1, None)]
    row = rows_of(results, "averages")[0]
    assert (row["mean"], row["failed"], row["geometric mean, at least 1"]) == (None, 1, 1.0)
    (row,) = rows_of(results, "scores")
    assert (row["speed, verified"], row["speed, kernelbench v0.1"]) == (1.0, 1.0)


def spread_of(results, figure):
    (row,) = (row for row in rows_of(results, "spread") if row["figure"] == figure)
    return row


def test_the_spread_covers_seeds():
    runs = [(task, seed) for task in range(1, 6) for seed in (0, 1, 2)]
    results = [a_result(task, times=(10.0 / (1 + seed) / task,), seed=seed) for task, seed in runs]
    row = spread_of(results, "speed, geometric mean")
    assert (row["lowest seed"], row["highest seed"]) == pytest.approx((120**0.2, 3 * 120**0.2))
    assert row["95 % from"] < row["value"] < row["to"]


def test_one_seed_shows_no_spread_of_seeds():
    row = spread_of([a_result(task) for task in range(5)], "success")
    assert (row["lowest seed"], row["highest seed"]) == (None, None)


def test_seeds_are_compared_on_the_tasks_that_all_have():
    """The second seed has not come to the task that is easy to make faster."""
    results = [a_result(1, times=(5.0,), seed=seed) for seed in (0, 1)] + [a_result(2, times=(0.1,))]
    row = spread_of(results, "speed, geometric mean")
    assert (row["lowest seed"], row["highest seed"]) == pytest.approx((2.0, 2.0))
    row = spread_of([a_result(1, seed=0), a_result(2, seed=1)], "speed, geometric mean")
    assert (row["lowest seed"], row["highest seed"]) == (None, None), "no task in common"


def test_a_rate_of_few_tasks_is_never_sure_and_their_speed_has_no_interval():
    three = [a_result(task, times=(5.0 / task,)) for task in (1, 2, 3)]
    success = spread_of(three, "success")
    assert (success["value"], success["to"]) == (1.0, pytest.approx(1.0))
    assert success["95 % from"] == pytest.approx(0.438, abs=0.001), "Wilson's of 3 out of 3"
    speed = spread_of(three, "speed, geometric mean")
    assert (speed["95 % from"], speed["to"]) == (None, None)
    (table,) = (table for table in filled_tables(three) if table.name == "spread")
    assert "fewer than 5 tasks" in table.note
    assert "Success and fast_1 count a failed task as 0" in table.note


def test_every_table_of_the_papers_says_over_how_many_tasks_and_runs_it_goes():
    results = [a_result(number, seed=seed) for number in (1, 2) for seed in (0, 1, 2)]
    for name in ("table-1", "table-2", "table-3", "fast-p"):
        ours, *theirs = rows_of(results, name)
        assert (ours["tasks"], ours["runs"]) == (2, 6)
        assert all((row["tasks"], row["runs"]) == (None, None) for row in theirs)


def test_fast_p_and_best_so_far():
    results = [a_result(1, times=(None, 20.0, 5.0)), a_result(2, times=(5.0, 5.0, 1.0))]
    (row,) = rows_of(results, "fast-p")
    assert (row["p = 1.0"], row["p = 3.0"], row["p = 5.0"]) == (1.0, 0.5, 0.5)
    (row,) = rows_of(results, "so-far")
    assert (row["after 1"], row["after 2"]) == pytest.approx((2**0.5, 2**0.5)), "a slower kernel counts as none"
    assert row["after 3"] == pytest.approx(20**0.5)


def test_a_run_without_an_attempt_is_not_solved_in_the_curve():
    """Its money was spent before the first one."""
    results = [a_result(1, times=(2.5,)), a_result(2, times=(), ending=Ending(EndReason.MONEY))]
    assert rows_of(results, "so-far")[0]["after 1"] == pytest.approx(2.0)


def test_money_per_solved_run():
    rows = {row["role"]: row for row in rows_of([a_result(1), a_result(2, times=(None,))], "cost")}
    assert (rows["all"]["calls"], rows["all"]["money"], rows["all"]["money per solved run"]) == (10, 1.5, 1.5)
    assert (rows["plan"]["tokens in"], rows["code"]["tokens out"]) == (200, 40)


def test_money_of_which_a_part_is_unknown_is_unknown():
    unpriced = {Role.PLAN: RoleUsage(2, Usage(100, 10), None, 3.0), Role.CODE: RoleUsage(3, Usage(200, 20), 0.25, 4.0)}
    (table,) = (table for table in filled_tables([a_result(1), a_result(2, usage=unpriced)]) if table.name == "cost")
    assert {row["role"]: row["money"] for row in table.records()} == {"plan": None, "code": 0.5, "all": None}
    shown = {texts[3]: texts[-2:] for texts in table.texts()}
    assert shown == {"plan": ["unknown", ""], "code": ["$0.50", "$0.25"], "all": ["unknown", ""]}


def test_failed_tasks_faults_and_exhausted_budgets_are_different_things():
    results = [
        a_result(1),
        a_result(2, times=(None,)),
        a_result(3, times=(None,), ending=Ending(EndReason.MONEY)),
        a_result(4, ending=Ending(EndReason.FAULT, "the GPU fell off the bus")),
        a_result(
            5,
            ending=Ending(EndReason.DEGENERATE_TASK, "Zeros are accepted."),
            metrics=None,
            degenerate="Zeros are accepted.",
        ),
        a_result(6, ending=Ending(EndReason.BROKEN_TASK, "out of memory"), metrics=None),
        a_result(7, ending=None, budget=30),
    ]
    (row,) = rows_of(results, "endings")
    assert {name: count for name, count in row.items() if count != 1} == {
        "score": "verified",
        "method": "stark",
        "no correct kernel": 2,
        "winner not confirmed": 0,
        "solved, slower than eager": 0,
        "of these solved": 0,
    }
    assert rows_of(results, "table-1")[0]["tasks"] == 3
    assert rows_of(results, "degenerate")[0]["why"] == "Zeros are accepted."


def test_a_budget_that_ran_out_is_reported_for_solved_runs_too():
    results = [
        a_result(1, ending=Ending(EndReason.MONEY)),
        a_result(2, times=(None,), ending=Ending(EndReason.TOKENS)),
        a_result(3),
    ]
    (row,) = rows_of(results, "endings")
    assert (row["solved"], row["no correct kernel"]) == (2, 1)
    assert (row["budget exhausted"], row["of these solved"]) == (2, 1)


def test_a_report_says_how_many_attempts_a_run_had_and_warns_where_they_differ():
    def had(number, method, attempts):
        return a_result(number, method, times=(5.0,) * attempts)

    same = [had(number, "stark", 30) for number in (1, 2)]
    assert "Attempts per run (B): 30." in header_facts(same)
    assert rows_of(same, "table-1")[0]["attempts per run"] == "30"
    assert not any("Warning" in table.note for table in filled_tables(same))
    unlike = [*same, had(3, "sampling", 60), had(4, "sampling", 10)]
    assert any(fact.startswith("Attempts per run (B): 10, 30, 60. Warning:") for fact in header_facts(unlike))
    found = {row["method"]: row["attempts per run"] for row in rows_of(unlike, "table-1") if row["score"] == "verified"}
    assert found == {"sampling": "10 to 60", "stark": "30"}
    assert all(
        "Warning" in table.note for table in filled_tables(unlike) if table.name in ("table-1", "averages", "fast-p")
    )


def test_the_attempts_of_a_run_that_another_limit_ended_are_those_it_made():
    ended = [a_result(1, times=(5.0,) * 30), a_result(2, times=(5.0,) * 10, budget=30, ending=Ending(EndReason.MONEY))]
    assert rows_of(ended, "table-1")[0]["attempts per run"] == "10 to 30"
    assert any(fact.startswith("Attempts per run (B): 10, 30. Warning:") for fact in header_facts(ended))


@given(
    st.sampled_from(["search", "rescored", "judged"]),
    st.sampled_from(["attempts", "money", "tokens", "stopped", "fault", "task", "degenerate", None]),
    st.integers(0, 5),
    st.integers(1, 5),
    st.booleans(),
)
def test_a_search_counts_with_all_its_attempts_or_an_end_that_says_why_not(kind, reason, made, budget, benched):
    ending = Ending(EndReason(reason)) if reason else None
    run = a_result(times=(5.0,) * made, kind=kind, budget=budget, ending=ending, is_benchmarked=benched)
    assert not (run.complete and benched and ending is None)
    assert not (run.complete and reason in ("stopped", "fault", "task", "degenerate"))
    if kind == "search" and run.complete and reason not in ("money", "tokens"):
        assert budget <= made == run.allowed_attempts
    if kind == "search" and reason in ("money", "tokens"):
        assert run.complete
        assert run.allowed_attempts == made


def test_methods_that_were_not_run_on_the_same_tasks_and_seeds_are_warned_of():
    same = [a_result(number, method) for number in (1, 2) for method in ("stark", "sampling")]
    assert not any("not comparable" in fact for fact in header_facts(same))
    for more in (a_result(3), a_result(1, seed=1)):
        (told,) = [fact for fact in header_facts([*same, more]) if "not comparable" in fact]
        assert told.startswith("Warning: the methods on level 1 by verified ")
        assert told.endswith("sampling 2, stark 3; 2 in common.")
    unfinished = a_result(2, "sampling", ending=Ending(EndReason.STOPPED))
    (told,) = [fact for fact in header_facts([*same[:3], unfinished]) if "not comparable" in fact]
    assert told.endswith("sampling 1, stark 2; 1 in common.")


def test_the_attempts_of_another_tool_are_the_kernels_it_made():
    made, none = a_result(1, kind="judged", budget=30), a_result(2, kind="judged", times=(), budget=30)
    assert "Attempts per run (B): 3." in header_facts([made, none])


def test_degenerate_tasks_that_were_searched_have_rows_of_their_own():
    results = [a_result(1), a_result(2, times=(0.1,), degenerate="Zeros are accepted.")]
    rows = {row["level"]: row for row in rows_of(results, "averages") if row["against"] == "eager"}
    assert (rows["1"]["mean"], rows["1, with degenerate"]["mean"]) == (2.0, 51.0)


def test_tasks_that_do_not_work_are_named_once_with_the_reason():
    ending = Ending(EndReason.BROKEN_TASK, "It crashes.\n  Traceback:\n  ouch")
    results = [a_result(2, method, ending=ending, metrics=None) for method in ("stark", "sampling")]
    assert rows_of([a_result(1), *results], "broken") == [
        {"task": "level1/2_Task", "score": "verified", "why": "It crashes. Traceback: ouch"}
    ]
    assert "broken" not in [
        table.name for table in filled_tables([a_result(1, ending=Ending(EndReason.FAULT, "no GPU"))])
    ]


def test_both_scores_stand_side_by_side():
    again = a_result(1, score="kernelbench v0.1", kind="rescored", times=(2.5,))
    (row,) = rows_of([a_result(1), again], "scores")
    assert (row["speed, verified"], row["speed, kernelbench v0.1"]) == (2.0, 4.0)


def rescored(number, ms, **changes):
    return a_result(number, score="kernelbench v0.1", kind="rescored", times=(ms,), **changes)


def test_both_scores_are_about_the_same_tasks():
    """Task 2 is degenerate by one score, task 3 by the other; the fourth was not judged by the other yet."""
    zeros = {"degenerate": "Zeros are accepted."}
    results = [a_result(1), a_result(2, times=(0.1,)), a_result(3, times=(None,), **zeros), a_result(4, times=(0.1,))]
    results += [
        rescored(1, 2.5),
        rescored(2, 0.1, **zeros),
        rescored(3, 0.1),
        rescored(4, 0.1, ending=Ending(EndReason.FAULT)),
    ]
    rows = {row["level"]: row for row in rows_of(results, "scores")}
    assert (rows["1"]["tasks"], rows["1"]["tasks left out"]) == (1, 3)
    assert (rows["1"]["success, verified"], rows["1"]["success, kernelbench v0.1"]) == (1.0, 1.0)
    assert (rows["1"]["speed, verified"], rows["1"]["speed, kernelbench v0.1"]) == (2.0, 4.0)
    whole = rows["1, with degenerate"]
    assert (whole["tasks"], whole["tasks left out"]) == (3, 1)
    assert (whole["success, verified"], whole["success, kernelbench v0.1"]) == (pytest.approx(2 / 3), 1.0)


def test_a_level_without_a_task_that_both_scores_admit_is_reported():
    results = [a_result(1), rescored(1, 2.5, degenerate="Zeros are accepted.")]
    plain, whole = sorted(rows_of(results, "scores"), key=lambda row: row["level"])
    assert (plain["tasks"], plain["tasks left out"]) == (0, 1)
    assert (plain["success, verified"], plain["speed, verified"]) == (None, None)
    assert (whole["tasks"], whole["speed, kernelbench v0.1"]) == (1, 4.0)


def test_a_report_becomes_files(tmp_path):
    results = [a_result(number, method) for number in (1, 2) for method in ("stark", "sampling")]
    assert write_report(tmp_path / "out", "A <title>", ["a fact"], filled_tables(results), group_runs(results)) == ""
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"report.md", "report.html", "table-1.csv", "table-1.parquet", "figure-1.png", "fast-p.svg"} <= names
    rows = read_rows(tmp_path / "out" / "table-1.parquet")
    assert [row["method"] for row in rows if row["score"] == "verified"] == ["sampling", "stark"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count('src="data:image/svg+xml;base64,') == 3
    assert "A &lt;title&gt;" in page
    assert not any(part in page for part in ("<script", "<link"))
    assert page.count("src=") == page.count('src="data:')


def test_the_files_of_a_table_say_the_same(tmp_path):
    """One method has asked no model, the other has; one has a mean that is a whole number."""
    results = [a_result(1), a_result(2, times=(3.0,)), a_result(1, "sampling", usage={}, evaluation_s=0)]
    write_report(tmp_path, "t", [], filled_tables(results), group_runs(results))
    for table in filled_tables(results):
        with (tmp_path / f"{table.name}.csv").open(newline="") as file:
            read = list(csv.DictReader(file))
        kept = read_rows(tmp_path / f"{table.name}.parquet")
        assert read == [{name: "" if value is None else str(value) for name, value in row.items()} for row in kept]


def test_a_report_leaves_nothing_of_an_earlier_one_behind(tmp_path):
    """The second has no other method, no task that is degenerate and so on; what is not a report's stays."""
    both = [a_result(1), a_result(1, "sampling"), a_result(2, degenerate="Zeros are accepted.")]
    for mine in ("notes.md", "table-1.txt", "mine.csv"):
        (tmp_path / mine).write_text("mine")
    for results in (both, [a_result(1)]):
        write_report(tmp_path, "t", [], filled_tables(results), group_runs(results))
    write_report(tmp_path / "fresh", "t", [], filled_tables([a_result(1)]), group_runs([a_result(1)]))
    fresh = {path.name for path in (tmp_path / "fresh").iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == fresh | {"fresh", "notes.md", "table-1.txt", "mine.csv"}
    assert not any(name.startswith(("figure-1", "degenerate")) for name in fresh), "nothing to show, nothing written"


def test_a_folder_without_a_report_loses_nothing(tmp_path):
    (tmp_path / "degenerate.csv").write_text("mine")
    write_report(tmp_path, "t", [], filled_tables([a_result(1)]), group_runs([a_result(1)]))
    assert (tmp_path / "degenerate.csv").read_text() == "mine"


@pytest.mark.parametrize("taken", ["fast-p.svg", "table-1.parquet", "report.md"])
def test_a_file_of_a_report_that_cannot_be_written_is_one_sentence(tmp_path, taken):
    (tmp_path / taken).mkdir()
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
        write_report(tmp_path, "t", [], filled_tables([a_result()]), group_runs([a_result()]))


def test_a_benchmark_that_has_just_begun_has_a_report_without_figures(tmp_path):
    results = [a_result(ending=None, budget=30)]
    write_report(tmp_path, "t", [], filled_tables(results), group_runs(results))
    assert {path.suffix for path in tmp_path.iterdir()} == {".md", ".html", ".csv", ".parquet"}
    assert [table.name for table in filled_tables(results)] == ["endings", "runs"]


def test_every_run_has_a_row_for_programs_and_none_on_the_page(tmp_path):
    lost = a_result(2, metrics=None, ending=Ending(EndReason.FAULT), usage={}, baselines={})
    results = [a_result(1), lost]
    first, second = rows_of(results, "runs")
    assert (first["task"], first["ended"], first["attempts"], first["best ms"]) == ("level1/1_Task", "solved", 3, 5.0)
    assert (first["speed eager"], first["speed max-autotune"]) == (2.0, 0.8)
    assert (first["plan calls"], first["code tokens out"], first["plan money"]) == (2, 20, 0.5)
    assert first["hours evaluating"] == pytest.approx(6 / 3600)
    assert (second["ended"], second["attempts"], second["speed eager"], second["code calls"]) == (
        "fault",
        None,
        None,
        0,
    )
    write_report(tmp_path, "t", [], filled_tables(results), group_runs(results))
    assert "Every run" not in (tmp_path / "report.md").read_text() + (tmp_path / "report.html").read_text()
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 3


def test_time_is_in_hours_in_every_form():
    (table,) = (table for table in filled_tables([a_result(1, evaluation_s=7200.0)]) if table.name == "time")
    assert table.records()[0]["hours evaluating"] == 2.0
    assert "2.00" in table.texts()[0]
    (phases,) = rows_of([a_result(1, phases_s=Phases(build=3600.0))] * 2, "phases")
    assert (phases["hours build"], phases["hours queue"]) == (2.0, 0.0)
    assert rows_of([a_result(1, wall_s=0.0)], "time")[0]["hours searching"] is None, "nobody has looked"


def test_text_that_would_break_a_table_is_escaped():
    results = [a_result(method="a|b <i>")]
    assert "a\\|b <i>" in format_markdown("t", [], filled_tables(results), [])
    assert "a|b &lt;i&gt;" in format_html("t", [], filled_tables(results), {})


@pytest.mark.filterwarnings("error")
def test_names_that_mean_something_to_matplotlib_are_drawn_as_they_are():
    """A folder of another tool's kernels, and a switch, may be called anything."""
    names = ["_theirs", "gen$a_$b", "stark (roles.plan.model=x:$y)", "5$"]
    drawn = draw_figures(group_runs([a_result(number, method) for number in (1, 2) for method in ("stark", *names)]))
    for figure in ("figure-1", "fast-p", "so-far"):
        told = drawn[figure]["svg"].decode()  # which names a text beside the curves that its letters are
        assert all(f"<!-- {name} -->" in told for name in names), figure


def test_the_layout_of_kernelbench(tmp_path):
    (file,) = write_eval_results(tmp_path, [a_result(26), a_result(3, times=(None,)), a_result(9, level=None)])
    assert file == tmp_path / "level_1-stark-seed_0-verified" / "eval_results.json"
    content = json.loads(file.read_text())
    assert list(content) == ["3", "26"]
    (best,) = content["26"]
    assert (best["sample_id"], best["correctness"], best["runtime"], best["metadata"]["node"]) == (0, True, 5.0, 3)
    assert best["metadata"]["best_of"] == 3
    assert (content["3"][0]["correctness"], content["3"][0]["runtime"]) == (False, -1.0)


@pytest.mark.parametrize("taken", ["out", "out/level_1-stark-seed_0-verified"])
def test_a_place_for_the_layout_of_kernelbench_that_is_a_file_is_reported(tmp_path, taken):
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).write_text("mine")
    with pytest.raises(UsageError, match=rf"{re.escape(str(tmp_path / 'out'))}.* cannot be created: "):
        write_eval_results(tmp_path / "out", [a_result(26)])
    assert (tmp_path / taken).read_text() == "mine"


def test_kernels_of_another_tool_keep_their_numbers(tmp_path):
    run = a_result(26, "theirs", kind="judged", times=(20.0, None, 5.0))
    root, *made = run.judgements
    given = [replace(each, id=1 + sample) for each, sample in zip(made, (0, 4, 7), strict=True)]
    (file,) = write_eval_results(tmp_path, [replace(run, judgements=(root, *reversed(given)))])
    samples = json.loads(file.read_text())["26"]
    assert [(each["sample_id"], each["runtime"]) for each in samples] == [(0, 20.0), (4, -1.0), (7, 5.0)]
    assert {each["metadata"]["best_of"] for each in samples} == {1}


def test_the_first_sample_is_the_winner_as_its_final_judged_it(tmp_path):
    held, lost = confirmed(a_result(1), a_final(8.0, node_id=1)), confirmed(a_result(2), a_final(None))
    content = json.loads(write_eval_results(tmp_path, [held, lost])[0].read_text())
    first = [
        (samples[0]["metadata"]["node"], samples[0]["correctness"], samples[0]["runtime"])
        for samples in content.values()
    ]
    assert first == [(1, True, 8.0), (3, False, -1.0)]
    assert [len(samples) for samples in content.values()] == [1, 1]


def test_runtimes_by_kernelbenchs_score_are_means_as_it_reports_them(tmp_path):
    runs = [a_result(26, score="kernelbench v0.1", times=(5.0,)), a_result(26, times=(5.0,), run_id="strict")]
    assert runs_scored_by_mean(runs) == [runs[0].run_id]
    files = write_eval_results(tmp_path, runs, {(runs[0].run_id, 1): Timing((4.0, 5.0, 9.0))})
    theirs, strict = (json.loads(file.read_text())["26"][0] for file in sorted(files))
    assert (theirs["runtime"], theirs["runtime_stats"]["median"], theirs["runtime_stats"]["mean"]) == (6.0, 5.0, 6.0)
    assert theirs["runtime_stats"]["num_trials"] == 3
    assert (strict["runtime"], strict["runtime_stats"]) == (5.0, {"median": 5.0})


# -- comparing two stores ---------------------------------------------------------------------------------------------


def test_a_clear_difference_is_significant():
    a = [a_result(number, times=(5.0,)) for number in range(8)]
    b = [a_result(number, times=(2.5,)) for number in range(8)]
    found = compare(a, b)
    (whole,) = found.overall
    assert (whole.ratio, whole.tasks) == (pytest.approx(2.0), 8)
    assert whole.p < 0.05
    assert whole.verdict.startswith("B is significantly faster, 2.00x")
    assert verdict_of(b, a).startswith("A is significantly faster, 2.00x")


def verdict_of(a, b):
    """Of stores of one score."""
    (whole,) = compare(a, b).overall
    return whole.verdict


def test_a_store_that_solved_nothing_is_not_faster_than_one_that_solved_all():
    """Kernels slower than the reference are not worse than none: a user keeps the reference either way."""
    a, none = [a_result(number, times=(12.0,)) for number in range(8)], [a_result(n, times=(None,)) for n in range(8)]
    assert verdict_of(a, none).startswith("Neither is faster on any task (8 compared).")
    assert "A solved significantly more tasks: of 8, A alone solved 8 and B alone 0 (p = 0.00781" in verdict_of(a, none)


def test_a_faster_store_that_solved_less_is_not_praised_without_a_word_on_that():
    a = [a_result(number, times=(9.0,)) for number in range(10)]
    b = [a_result(number, times=(2.0 if number < 8 else None,)) for number in range(10)]
    assert verdict_of(a, b).startswith("B is significantly faster")
    assert "No significant difference in tasks solved: of 10, A alone solved 2 and B alone 0 (p = 0.5," in verdict_of(
        a, b
    )


def test_that_more_tasks_are_solved_is_reported_where_nothing_is_faster():
    """B solves all that A does not, with kernels as fast as the reference."""
    a, b = ([a_result(number, times=(ms,)) for number in range(20)] for ms in (None, 10.0))
    found = compare(a, b)
    (whole,) = found.overall
    assert whole.verdict == (
        "Neither is faster on any task (20 compared). B solved significantly more tasks: of 20, A alone solved 0 and B"
        " alone 20 (p < 0.001, exact sign test)."
    )
    *_, table = comparison_tables(found)
    assert table.records()[0]["p of solved"] == pytest.approx(2.0**-19)


def test_each_score_has_its_own_result():
    """By verified nothing differs, by kernelbench's rules B is twice as fast and solves a task more."""

    def judged(number, verified, theirs):
        by = {"verified": verified, "kernelbench HEAD": theirs}
        return [a_result(number, times=(ms,), kind="judged", score=score) for score, ms in by.items()]

    a = [run for number in range(7) for run in judged(number, 5.0, 5.0 if number else None)]
    b = [run for number in range(7) for run in judged(number, 5.0, 2.5)]
    theirs, verified = compare(a, b).overall
    assert (verified.score, verified.ratio, verified.tasks, verified.only_b) == ("verified", 1.0, 7, 0)
    assert (theirs.score, theirs.tasks, theirs.only_b) == ("kernelbench HEAD", 7, 1)
    assert theirs.ratio > 2
    (table,) = (table for table in comparison_tables(compare(a, b)) if table.name == "overall")
    assert [row["score"] for row in table.records()] == ["kernelbench HEAD", "verified"]
    assert "stark by kernelbench HEAD: B is significantly faster" in table.note
    assert "stark by verified: Neither is faster" in table.note


def test_where_the_test_cannot_decide_there_is_no_interval():
    """All five tasks have become faster, which chance does too once in sixteen times."""
    a = [a_result(number, times=(5.0,)) for number in range(6)]
    b = [a_result(number, times=(4.0 / (1 + number),)) for number in range(6)]
    *_, table = comparison_tables(compare(a[:5], b[:5]))
    assert table.note.startswith("Too few tasks")
    assert (table.records()[0]["95 % from"], table.records()[0]["to"]) == (None, None)
    assert "fewer than 6 tasks" in table.note
    *_, table = comparison_tables(compare(a, b))
    assert table.note.startswith("B is significantly faster")
    assert table.records()[0]["95 % from"] > 1


def test_the_interval_of_a_speed_that_is_at_least_1_begins_there():
    runs = [a_result(number, times=(10.0 if number else 1.0,)) for number in range(5)]
    row = spread_of(runs, "speed, geometric mean")
    assert row["95 % from"] == 1.0 < row["value"] < row["to"]


def test_each_method_has_its_own_verdict():
    """A change that helps one method and harms another is no "no difference"."""
    a = [a_result(number, method, times=(4.0,)) for number in range(8) for method in ("stark", "sampling")]
    b = [replace(run, metrics=replace(run.metrics, best_ms=2.0 if run.method == "stark" else 8.0)) for run in a]
    found = compare(a, b)
    assert [(one.method, one.tasks, one.ratio) for one in found.overall] == [
        ("sampling", 8, pytest.approx(0.5)),
        ("stark", 8, pytest.approx(2.0)),
    ]
    *_, table = comparison_tables(found)
    assert [row["method"] for row in table.records()] == ["sampling", "stark"]
    assert "sampling by verified: A is significantly faster, 2.00x" in table.note
    assert "stark by verified: B is significantly faster, 2.00x" in table.note
    assert "one in twenty" in table.note
    *_, table = comparison_tables(compare(a[:1], b[:1]))
    assert "one in twenty" not in table.note


@pytest.mark.parametrize(("tasks", "verdict"), [(1, "Too few"), (5, "Too few"), (6, "B is sig"), (16, "B is sig")])
def test_a_verdict_needs_as_many_tasks_as_could_show_a_difference(tasks, verdict):
    a = [a_result(number, times=(5.0,)) for number in range(tasks)]
    (found,) = compare(a, [a_result(number, times=(2.5,)) for number in range(tasks)]).overall
    assert found.verdict.startswith(verdict)
    assert (found.p < 0.05) == (verdict != "Too few"), "more tasks are asked for exactly where they are needed"


@pytest.mark.parametrize(("faster", "verdict"), [(0, "Neither"), (4, "Too few"), (5, "Too few"), (6, "B is sig")])
def test_tasks_that_do_not_differ_are_no_evidence(faster, verdict):
    """Of 20 tasks the others are solved by neither, or differ by rounding alone."""
    a = [a_result(number, times=(5.0 if number < 15 else None,)) for number in range(20)]
    b = [a_result(n, times=(2.5 if n < faster else 5.0 + 1e-12 if n < 15 else None,)) for n in range(20)]
    (found,) = compare(a, b).overall
    assert found.verdict.startswith(verdict)
    assert found.differing == faster
    assert (found.p < 0.05) == (verdict == "B is sig")


def test_no_difference_among_enough_tasks_is_called_none():
    a = [a_result(number, times=(5.0,)) for number in range(6)]
    b = [a_result(number, times=(4.0 if number % 2 else 6.25,)) for number in range(6)]
    assert verdict_of(a, b).startswith("No significant difference in speed (p = 1,")
    assert verdict_of(a, b).endswith("No task was solved by one side alone (6 compared).")


def test_stores_of_different_scores_are_compared_only_on_request():
    a, b = [a_result(1)], [a_result(1, score="kernelbench HEAD")]
    with pytest.raises(UsageError, match="by verified and B by kernelbench HEAD"):
        compare(a, b)
    found = compare(a, b, any_score=True)
    assert [pair.score for pair in found.pairs] == ["verified / kernelbench HEAD"]
    (warning,) = found.warnings
    assert "rules and clocks" in warning


def test_of_stores_with_several_scores_the_same_ones_are_paired():
    judged = [a_result(1, score="verified"), a_result(1, score="kernelbench HEAD", times=(1.0,))]
    found = compare([a_result(1)], judged)
    assert [(pair.score, pair.ratio) for pair in found.pairs] == [("verified", 1.0)]
    assert [(each.score, each.why) for each in found.left_out] == [("kernelbench HEAD", "A: none, B: complete")]
    with pytest.raises(UsageError, match="Cannot match the scores"):
        compare([a_result(1, score="kernelbench v0.1")], judged, any_score=True)


def test_winners_by_the_other_score_are_paired_as_a_score_of_their_own():
    """By the score of the search B is twice as fast, by the other one it has no kernel that holds."""
    a = [run for number in range(6) for run in (a_result(number, times=(5.0,)), rescored(number, 5.0))]
    b = [run for number in range(6) for run in (a_result(number, times=(2.5,)), rescored(number, None))]
    found = compare(a, b)
    assert [(one.score, one.ratio, one.only_a) for one in found.overall] == [
        ("kernelbench v0.1", pytest.approx(0.5), 6),
        ("verified", pytest.approx(2.0), 0),
    ]
    assert found.left_out == ()


def test_winners_by_a_score_that_one_side_lacks_are_reported():
    found = compare([a_result(1), rescored(1, 5.0)], [a_result(1)])
    assert [(each.score, each.why) for each in found.left_out] == [("kernelbench v0.1", "A: complete, B: none")]
    assert found.warnings == ()


def test_winners_that_were_chosen_by_another_score_than_they_are_compared_by_are_warned_of():
    b = [a_result(1, score="kernelbench v0.1", budget=1, times=(5.0,))]
    (warning,) = compare([a_result(1, times=(5.0,)), rescored(1, 5.0)], b).warnings
    assert warning.startswith("A's kernels were chosen by another score, B's by the score compared")


def test_on_request_the_scores_of_the_searches_are_paired():
    a, b = (
        [a_result(1), rescored(1, 5.0)],
        [a_result(1, score="verified TF32"), replace(rescored(1, 5.0), score="kernelbench HEAD")],
    )
    found = compare(a, b, any_score=True)
    assert [pair.score for pair in found.pairs] == ["verified / verified TF32"]
    assert {each.score for each in found.left_out} == {"kernelbench v0.1", "kernelbench HEAD"}


def test_other_machines_and_budgets_are_warned_of():
    a = [a_result(number) for number in (1, 2)]
    assert compare(a, a).warnings == ()
    b = [a_result(number, times=(5.0,) * 30, device="another") for number in (1, 2)]
    device, budget = compare(a, b).warnings
    assert "A was measured on a device, B on another" in device
    assert "best of 3 attempts, B of 30" in budget


def test_other_numbers_of_seeds_are_warned_of():
    one, three = [a_result(1)], [a_result(1, seed=seed) for seed in range(3)]
    (warning,) = compare(one, three).warnings
    assert warning.startswith("A has 1 runs of a task and method, B 3")
    assert compare(three, three).warnings == ()


def test_kernels_of_another_tool_count_as_the_attempts_they_are():
    judged = a_result(1, kind="judged", method="theirs", budget=30)
    assert compare([a_result(1)], [judged]).warnings == ()


def test_what_is_not_compared_is_reported_with_the_reason():
    a = [a_result(number) for number in (1, 2, 3, 4)]
    b = [
        a_result(1),
        a_result(2, degenerate="Zeros are accepted.", times=(0.1,)),
        a_result(3, ending=Ending(EndReason.FAULT, "no GPU")),
        a_result(5),
    ]
    found = compare(a, b)
    assert [pair.task for pair in found.pairs] == ["level1/1_Task"]
    assert {each.task[7]: each.why for each in found.left_out} == {
        "2": "degenerate: Zeros are accepted.",
        "3": "A: complete, B: not complete",
        "4": "A: complete, B: none",
        "5": "A: none, B: complete",
    }
    _, rest, _ = comparison_tables(found)
    assert len(rest.records()) == 4


def test_stores_whose_common_tasks_test_nothing_cannot_be_compared():
    runs = [a_result(1, degenerate="Zeros are accepted.")]
    with pytest.raises(UsageError, match="not degenerate"):
        compare(runs, runs)


def test_the_conditions_of_a_store_are_reported():
    told = describe_store("A", Path("runs/a"), [a_result(1, models=("openai:gpt-5",)), a_result(2)])
    assert told == "A: runs/a, by openai:gpt-5. Score: verified. Device: a device. Attempts: 3."


def test_stores_of_one_method_each_are_paired_by_task():
    a = [a_result(1, "sampling", times=(10.0,)), a_result(2, "sampling", times=(None,))]
    b = [a_result(1, "stark", times=(5.0,)), a_result(2, "stark", times=(5.0,)), a_result(3)]
    found = compare(a, b)
    assert [(pair.method, pair.ratio) for pair in found.pairs] == [("sampling / stark", 2.0)] * 2
    assert [(whole.only_a, whole.only_b) for whole in found.overall] == [(0, 1)]


def test_stores_without_a_common_method_are_refused():
    """On the same task; another tool's kernels have its name for a method."""
    a, b = [a_result(1), a_result(1, "sampling")], [a_result(1, "theirs", kind="judged")]
    with pytest.raises(UsageError, match="A has complete runs of sampling and stark, B of theirs"):
        compare(a, b)


def test_stores_without_a_common_task_cannot_be_compared():
    with pytest.raises(UsageError, match="in common"):
        compare([a_result(1)], [a_result(2)])


def test_a_report_that_is_interrupted_leaves_the_earlier_one(tmp_path, monkeypatch):
    write_report(tmp_path, "t", [], filled_tables([a_result()]), group_runs([a_result()]))
    before = {path.name for path in tmp_path.iterdir()}
    written = []

    def interrupted(path, content):
        if written:
            raise KeyboardInterrupt
        written.append(path.write_bytes(content))

    monkeypatch.setattr("stark.report.files.write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report(tmp_path, "t", [], filled_tables([a_result()]), group_runs([a_result()]))
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.04996, "p < 0.05"), (0.0499, "p = 0.0499"), (0.05, "p = 0.05"), (0.0004, "p < 0.001"), (0.5, "p = 0.5")],
)
def test_what_is_significant_is_not_rounded_to_what_is_not(p, text):
    assert format_p(p) == text
