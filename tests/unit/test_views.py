"""What a model wrote, as it is shown and exported."""

from __future__ import annotations

import json
from dataclasses import replace

from conformance.store import a_call, a_node, a_root
from stark.tree import Plan, Role
from stark.view.exports import write_training_data
from stark.view.terminal import show_node

HOSTILE = "Tile\x1b]0;owned\x07 the loop \ud83d"


def test_it_is_no_order_to_a_terminal(capsys):
    node = replace(a_node(1, 0), role=Role.CODE, plan=Plan(HOSTILE), notes=(HOSTILE,))
    show_node(node, a_root(), [a_call(1, 0, HOSTILE)])
    shown = capsys.readouterr().out
    assert shown.count("Tile") >= 4, "note, prompt, reply and advice"
    assert "\x1b]0;" not in shown


def test_half_a_character_does_not_lose_the_training_data(tmp_path):
    call = a_call(1, 0, HOSTILE)
    assert write_training_data(tmp_path / "calls.jsonl", [a_root(), a_node(1, 0)], [call], call.role) == 1
    assert "Tile" in json.dumps(json.loads((tmp_path / "calls.jsonl").read_text()))
