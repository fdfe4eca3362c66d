"""Docs are true: what they list is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stark.agents.prompts import VARIABLES
from stark.cli import app

ROOT = Path(__file__).parents[2]


def test_the_page_on_prompts_lists_every_variable_with_its_meaning():
    page = (ROOT / "docs" / "prompts.md").read_text()
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)) == VARIABLES


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/prompts.md", "docs/reproduce.md"]
)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_readme_names_only_commands_that_exist():
    named = set(re.findall(r"\bstark (\w+) ", (ROOT / "README.md").read_text()))
    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert named <= known


def test_the_folders_of_the_architecture_page_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    for name in re.findall(r"^  (\w+(?:\.py|/)) ", page, re.MULTILINE):
        assert any((ROOT / "src" / package / name).exists() for package in ("stark", "stark_worker")), name
