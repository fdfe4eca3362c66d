"""The live views as lines: what they hold, and that they fit."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest
from rich.text import Text

from stark.core.records import Ending, EndReason, Event, EventKind, Spend
from stark.core.steps import Step, Work
from stark.core.tree import ROOT_ID, Attempt, Node, Plan, Role
from stark.progress.board import Board, RunPlan
from stark.progress.draw_bench import draw_bench
from stark.progress.draw_run import draw_only_run
from stark.progress.notebook import format_lines
from stark.progress.words import ASCII, UNICODE, Frame, format_left, marks_for, text_of, text_width
from stark_worker.protocol.bound import Bound, Doubt, Limit, Peaks, Reason
from stark_worker.protocol.bound import Work as Bytes
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing

HOSTILE = "[bold red]Tile[/] \x1b]0;owned\x07\x1b[2J <script>alert(1)</script> {0} \ud83d\nnext"
PLAN = RunPlan("run", "task", "stark", "verified", attempts=8, jobs=2, usd=10.0)


def a_node(number, parent=ROOT_ID, ms=None, advice=""):
    report = EvalReport(Outcome.OK, Timing((ms,))) if ms else EvalReport(Outcome.COMPILE_ERROR)
    return Node(number, parent, Attempt(Role.CODE, f"source {number}", report, Plan(advice)))


def a_root(ms=10.0):
    return Node(ROOT_ID, None, Attempt(Role.REFERENCE, "x", EvalReport(Outcome.OK, Timing((ms,)))))


def a_board(*nodes, plan=PLAN):
    board = Board()
    board.add(plan)
    for node in (a_root(), *nodes):
        board.apply(Event(EventKind.LANDED, node.id, node=node, run=plan.run, spent=Spend(1000, 0.5)), 100.0)
    return board


def test_the_best_has_its_share_of_the_bound_with_a_mark_if_it_is_a_hint():
    peaks = Peaks("a GPU", 4000, 4000, 4000)
    for doubts, words in ((), "50% of the bound  "), ((Doubt(Reason.GATHER),), "50% of the bound (a hint)"):
        bound = Bound(2.5, Limit.MEMORY, 2.5, 0.0, 0.0, Bytes(1, 1, 1, {}), peaks, {}, doubts)
        root = a_root()
        board = a_board(replace(root, attempt=replace(root.attempt, report=replace(root.report, bound=bound))))
        board.apply(Event(EventKind.LANDED, 1, node=a_node(1, ms=5.0), run="run"), 100.0)
        assert words in "\n".join(texts(draw_only_run(board, frame(width=140))))


def begin(board, number, parent, step=Step.PLANNING, now=100.0, plan=PLAN):
    board.apply(Event(EventKind.BEGUN, number, node=parent, step=step, run=plan.run, spent=Spend(1000, 0.5)), now)


def frame(width=100, height=30, now=112.0, marks=UNICODE):
    return Frame(width, height, marks, now, 65.0, 190.0, "starting")


def texts(lines):
    return ["".join(map(text_of, line)) for line in lines]


def test_everything_in_flight_has_a_step_and_its_seconds():
    board = a_board(a_node(1, ms=5.0, advice="# Fuse it"))
    begin(board, 2, a_node(1))
    begin(board, 3, a_root())
    board.apply(Event(EventKind.EVALUATING, 3, step=Step.WAITING, run="run", spent=Spend(1000, 0.5)), 104.0)
    shown = "\n".join(texts(draw_only_run(board, frame())))
    assert re.search(r"#2 on #1 +planning 12 s", shown)
    assert re.search(r"#3 on root +waiting for the CPU 8 s", shown)
    for expected in (
        "#1 code  5.000 ms  2.00x  ★ best  Fuse it",
        "1 of 8 attempts",
        "$0.50 of $10.00",
        "about 3 min left",
    ):
        assert expected in shown


def test_work_after_the_end_of_a_run_is_shown():
    board = a_board(a_node(1, ms=5.0))
    board.apply(Event(EventKind.ENDED, run="run", ending=Ending(EndReason.DONE)), 102.0)
    busy, idle = frame(), replace(frame(), doing="")
    assert any("starting" in line for line in texts(draw_only_run(board, busy)))
    assert not any(UNICODE.spinner[0] in line or "waiting" in line for line in texts(draw_only_run(board, idle)))


def test_a_benchmark_is_never_silent_before_its_runs_are_known():
    shown = texts(draw_bench(Board(), "store", frame()))
    assert any("starting" in line for line in shown)
    assert not any("0 of 0" in line for line in shown)


def test_what_has_landed_was_cut_short_or_ended_is_no_longer_in_flight():
    board = a_board()
    for number in (1, 2, 3):
        begin(board, number, a_root())
    board.apply(Event(EventKind.LANDED, 1, node=a_node(1), run="run"), 101.0)
    board.apply(Event(EventKind.CUT_SHORT, 2, run="run"), 101.0)
    assert [number for _, number in board.runs["run"].flights] == [3]
    ending = Ending(EndReason.MONEY)
    board.apply(Event(EventKind.ENDED, run="run", ending=ending), 102.0)
    assert not board.flights(103.0).flights
    assert "ended: budget exhausted: money" in texts(draw_only_run(board, frame()))[-1]


@pytest.mark.parametrize("width", [1, 8, 20, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 2, 5, 10, 24])
def test_it_fits_whatever_the_window(width, height):
    deep = [a_node(number, number - 1, 10.0 / number, "advice 数学 " * 30) for number in range(1, 41)]
    board = a_board(*deep)
    for number in range(41, 61):
        begin(board, number, deep[number % 7])
    for lines in (draw_only_run(board, frame(width, height)), draw_bench(board, "store", frame(width, height))):
        assert 1 <= len(lines) <= height
        assert all(text_width(text) <= width for text in texts(lines))


def test_a_large_tree_shows_the_best_and_what_is_built_upon():
    nodes = [a_node(number, number // 3, 20.0 if number != 71 else 1.0) for number in range(1, 200)]
    board = a_board(*nodes)
    begin(board, 200, nodes[39])
    shown = "\n".join(texts(draw_only_run(board, frame(height=24))))
    assert "#71 code  1.000 ms  10.00x  ★ best" in shown
    assert "#40 code" in shown
    assert "more nodes" in shown


def test_text_of_models_is_text():
    plan = RunPlan("run", HOSTILE, HOSTILE, "verified", attempts=2)
    board = a_board(a_node(1, ms=5.0, advice=HOSTILE), plan=plan)
    board.apply(Event(EventKind.NOTE, text=HOSTILE, run="run"), 101.0)
    begin(board, 2, a_root(), plan=plan)
    for lines in (draw_only_run(board, frame(width=300)), draw_bench(board, HOSTILE, frame(width=300))):
        shown = "\n".join(texts(lines))
        assert "[bold red]Tile[/]" in shown
        assert not any(not letter.isprintable() for letter in shown.replace("\n", ""))
        assert [Text.assemble(*line).plain for line in lines] == shown.split("\n")
        page = format_lines(lines)
        assert "<script" not in page
        assert "<script>alert(1)" in html.unescape(page)


def test_a_terminal_without_unicode_gets_ascii():
    board = a_board(a_node(1, ms=5.0))
    begin(board, 2, a_root())
    assert all(text.isascii() for text in texts(draw_only_run(board, frame(marks=marks_for("latin-1")))))
    assert marks_for("UTF-8") is UNICODE
    assert marks_for("ascii") is ASCII


def test_a_benchmark_shows_its_runs_and_why_they_ended():
    board = Board(parallel_runs=4)
    plans = [RunPlan(f"run {place}", f"task {place}", "stark", "verified", attempts=4) for place in range(4)]
    for plan in plans:
        board.add(plan)
        board.apply(Event(EventKind.EVALUATING, ROOT_ID, work=Work.REFERENCE, step=Step.BUILDING, run=plan.run), 100.0)
    board.apply(Event(EventKind.ENDED, run="run 0", ending=Ending(EndReason.BROKEN_TASK, "It is broken.")), 105.0)
    shown = "\n".join(texts(draw_bench(board, "store", frame())))
    assert "0 of 12 attempts, 1 of 4 runs" in shown
    assert re.search(r"task 1, stark, seed 0 .* 0/4  reference building 12 s", shown)
    assert "It is broken." in shown
    assert shown.count("building") == 3


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "time left not known yet"),
        (5, "nearly done"),
        (50, "less than a minute left"),
        (7200, "about 2.0 h left"),
    ],
)
def test_the_time_left_is_in_words(seconds, words):
    assert format_left(seconds) == words
