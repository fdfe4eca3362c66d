"""What a model wrote, as it is shown and exported."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from conformance.store import a_call, a_node, a_root, a_run
from stark.cli.terminal.progress import Progress
from stark.cli.terminal.screen import show_line, show_tables
from stark.cli.terminal.tree import show_node, show_tree
from stark.core.records import Event, EventKind
from stark.core.tree import Plan, Role
from stark.report.exports import write_text, write_training_data
from stark.report.table import Table
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Phases, Timing

HOSTILE = "Tile\x1b]0;owned\x07 the loop \ud83d"


def test_it_is_no_order_to_a_terminal(capsys):
    node = a_node(1, 0, role=Role.CODE, plan=Plan(HOSTILE, HOSTILE), notes=(HOSTILE,), source=HOSTILE)
    show_node(node, a_root(), [a_call(1, 0, HOSTILE)])
    Progress()(Event(EventKind.NOTE, text=HOSTILE))
    show_line(HOSTILE)
    show_tables([], [Table("t", "T", {"why": "text"}, [(HOSTILE,)])])
    shown = capsys.readouterr().out
    assert shown.count("Tile") >= 9, "note, prompt, reply, advice, scaffold, change; note, line and cell"
    assert "\x1b]0;" not in shown


def test_half_a_character_does_not_lose_the_training_data(tmp_path):
    call = a_call(1, 0, HOSTILE)
    assert write_training_data(tmp_path / "calls.jsonl", [a_root(), a_node(1, 0)], [call], call.role) == 1
    assert "Tile" in json.dumps(json.loads((tmp_path / "calls.jsonl").read_text()))


def test_the_best_is_marked_however_narrow_the_page(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    plan = Plan("Tile the loop by hand, and then once more, because the cache of this machine has two levels.")
    nodes = [a_root(), *(a_node(number, number - 1, plan=plan) for number in (1, 2, 3))]
    show_tree(a_run(settings={"method": "stark"}), nodes)
    shown = capsys.readouterr().out
    assert "★ best" in shown
    assert shown.count("of this ma…") == 3, "and nothing is cut off where it is no terminal"


def test_the_phases_of_all_evaluations_are_summed_and_a_twin_was_not_evaluated(capsys):
    timed = EvalReport(Outcome.OK, Timing((1.0,)), phases_s=Phases(build=2.0, time=1.0))
    twin = replace(a_node(2, 0, report=timed), same_as=1)
    show_tree(a_run(settings={"method": "stark"}), [a_root(), a_node(1, 0, report=timed), twin])
    assert "All evaluations: 4.5 s (build 3.5, time 1.0)" in capsys.readouterr().out


def test_a_long_reason_leaves_the_other_columns_alone(capsys):
    rows = [("level1/26_GELU_", "verified", "why " * 900), ("level1/1_Square", "verified", "short")]
    show_tables([], [Table("broken", "Broken", dict.fromkeys(("task", "score", "why"), "text"), rows)])
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("level1/26_GELU_", "level1/1_Square", "verified", "short"))


def test_what_is_exported_goes_where_a_link_points_to(tmp_path):
    kept, link = tmp_path / "kept.py", tmp_path / "link.py"
    link.symlink_to(kept)
    write_text(link, "text")
    assert (link.is_symlink(), kept.read_text()) == (True, "text")


def test_what_is_exported_takes_no_devices_place(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "text")
    assert os.read(reading, 10) == b"text"
    assert pipe.is_fifo()


def test_what_is_exported_may_go_to_a_pipe_without_a_name():
    reading, writing = os.pipe()
    write_text(Path(f"/dev/fd/{writing}"), "text")
    assert os.read(reading, 10) == b"text"
