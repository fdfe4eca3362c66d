"""Docs are true: what they list is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stark.agents.prompts import VARIABLES
from stark.cli import app
from stark.models.playbook.moves import MOVES

ROOT = Path(__file__).parents[2]


def test_the_page_on_prompts_lists_every_variable_with_its_meaning():
    page = (ROOT / "docs" / "prompts.md").read_text()
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)) == VARIABLES


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_page_on_trust_names_every_exploit_that_gets_through():
    page = (ROOT / "docs" / "trust.md").read_text()
    for path in (ROOT / "tests" / "adversarial" / "exploits").glob("*.py"):
        facts = path.read_text().split('"""')[1]
        if "\nknown: " in facts and "\nexpect: contained" not in facts:
            assert f"`{path.stem}`" in page, path.stem


def test_the_readme_names_only_commands_that_exist():
    named = set(re.findall(r"\bstark (\w+) ", (ROOT / "README.md").read_text()))
    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert named <= known


def test_the_page_on_the_playbook_lists_every_move():
    page = (ROOT / "docs" / "playbook.md").read_text()
    listed = dict(re.findall(r"^\| ([\w-]+) \| (both|cpu|triton) \|", page, re.MULTILINE))
    known = {move.name: move.targets[0] if len(move.targets) == 1 else "both" for move in MOVES.values()}
    assert listed == {name: target for name, target in known.items() if MOVES[name].gain}


def test_the_folders_of_the_architecture_page_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    for name in re.findall(r"^  (\w+(?:\.py|/)) ", page, re.MULTILINE):
        assert any((ROOT / "src" / package / name).exists() for package in ("stark", "stark_worker")), name
