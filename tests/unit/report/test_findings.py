"""What a report says of each task."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_report import a_result, confirmed

from stark.core.records import Final
from stark.report.files import Findings, format_html, format_markdown
from stark.report.run_table import runs_table
from stark.report.tasks.findings import Verdict, describe_findings, find_tasks, tasks_table
from stark_worker.protocol.bound import Bound, Doubt, Limit, Peaks, Reason, Work
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing
from stark_worker.protocol.request import Score


def a_sure_final(ms, eager_ms=12.0):
    report = EvalReport(Outcome.OK, Timing((ms,) * 20), opponent=Timing((eager_ms,) * 20))
    return Final(3, Score.VERIFIED, report, report)


def a_bound(ms, *doubts):
    peaks = Peaks("a GPU", 4000, 4000, 4000)
    return Bound(ms, Limit.MEMORY, ms, 0.0, 0.0, Work(1, 1, 1, {}), peaks, {}, doubts)


@pytest.mark.parametrize(
    ("final_ms", "verdict"), [(4.0, Verdict.FASTER), (24.0, Verdict.SLOWER), (12.0, Verdict.UNSURE)]
)
def test_a_final_decides_on_the_word(final_ms, verdict):
    (found,) = find_tasks([confirmed(a_result(), a_sure_final(final_ms))])
    assert found.verdict is verdict
    assert verdict.value in tasks_table([found]).texts()[0]


def test_a_row_has_the_times_of_the_same_turns():
    (found,) = find_tasks([confirmed(a_result(), a_sure_final(4.0))])
    row = tasks_table([found]).records()[0]
    assert (row["eager ms"], row["ours ms"], row["speed"]) == (12.0, 4.0, 3.0)
    assert row["torch.compile ms"] == pytest.approx(6.0), "half of eager, in every turn"
    assert (row["attempts"], row["cost"], row["kernel"]) == (3, 0.75, "#3 of stark")


def test_the_best_run_of_a_task_stands_for_it_and_all_count_for_the_cost():
    runs = [a_result(1, times=(8.0,)), a_result(1, "sampling", times=(4.0, 2.0)), a_result(2, times=(None,))]
    first, second = find_tasks(runs)
    assert (first.best.method, first.attempts, first.usd, first.node) == ("sampling", 3, 1.5, 2)
    assert second.verdict is Verdict.NO_KERNEL
    sentences = describe_findings([first, second])
    assert len(sentences) == 3
    assert sentences[0].startswith("Of 2 tasks, 1 got a correct kernel that is not surely faster")
    assert "4 attempts in 3 runs" in sentences[2]


def test_the_share_of_the_bound_is_a_column_only_where_it_is_known():
    old = a_result()
    assert "share of the bound" not in tasks_table(find_tasks([old])).columns
    certain = replace(a_result(2), bound=a_bound(1.0))
    hint = replace(a_result(3), bound=a_bound(2.0, Doubt(Reason.GATHER)))
    beaten = replace(a_result(4), bound=a_bound(1000.0))
    rows = tasks_table(find_tasks([old, certain, hint, beaten])).records()
    best_ms = certain.metrics.best_ms
    assert [row["share of the bound"] for row in rows] == [None, 1.0 / best_ms, 2.0 / best_ms, None]
    assert [row["bound is"] for row in rows] == ["", "certain", "hint", ""]
    listed = runs_table([old, certain]).records()
    assert [row["bound ms"] for row in listed] == [None, 1.0]


def test_the_page_begins_with_the_findings_and_links_to_them():
    hostile = "<script>alert(1)</script>"
    found = find_tasks([replace(a_result(), task=hostile)])
    details = Findings(describe_findings(found), tasks_table(found), [("kernel-1", "tree-1")])
    page = format_html("t", ["a fact"], [], {}, details)
    assert page.index("That took 3 attempts") < page.index("Task by task") < page.index("a fact")
    assert 'href="#kernel-1"' in page
    assert hostile not in page
    assert "That took 3 attempts" in format_markdown("t", [], [], [], details)
