"""The reference page agrees with the code."""

from __future__ import annotations

import re

from typer.main import get_command

from paths import ROOT
from stark.cli.exit_codes import MEANINGS
from stark.cli.main import load_app
from stark.core.errors import StarkError
from stark.report.reference_page import reference_page
from stark.run.settings_loader import known_keys

PAGE = ROOT / "docs" / "reference.md"


def test_the_committed_page_is_what_the_code_says_today():
    assert PAGE.read_text(encoding="utf-8") == reference_page(get_command(load_app()), MEANINGS), (
        "docs/reference.md is out of date; run scripts/reference and commit the page."
    )


def test_every_setting_command_and_exit_code_is_on_it():
    page = PAGE.read_text(encoding="utf-8")
    for key in known_keys():
        listed = re.sub(r"^roles\.\w+\.", "roles.*.", key)  # the four roles have the same settings
        assert f"\n| `{listed}` | " in page, key
    for command in get_command(load_app()).commands:
        assert f"### stark {command}\n" in page
    for code in exit_codes(StarkError):
        assert f"\n| {code} | " in page, code


def exit_codes(error: type[StarkError]) -> set[int]:
    return {error.exit_code}.union(*map(exit_codes, error.__subclasses__()))
