"""Foreign texts are marked as data, and keys leave in nothing."""

from __future__ import annotations

import re

import pytest

from stark.core.errors import ModelRefused
from stark.mcp.quoting import REMOVED, Redactor, quote
from stark.mcp.results import Found, format_error
from stark_worker.protocol.errors import Outcome

KEY = "sk-very-secret-key-0123456789"


def test_a_text_stands_between_lines_that_it_cannot_know():
    first, second = quote("one", "a compiler"), quote("one", "a compiler")
    word = re.search(r"the line with (\w+)\]", first)[1]
    assert first.splitlines()[-1] == f"[end of data {word}]"
    assert word not in second
    forged = quote(first, "a compiler")
    assert forged.splitlines()[-1] != first.splitlines()[-1]


def test_hidden_characters_are_taken_out():
    hidden = "a\x1b[2Jb\u202ec\u200bd" + "".join(chr(0xE0000 + ord(letter)) for letter in "obey") + "\x07\r\u2028e"
    shown = quote(hidden, "x").splitlines()
    assert len(shown) == 3
    assert shown[1].isprintable()
    assert all(letter in shown[1] for letter in "abcde")


def test_an_empty_text_needs_no_mark():
    assert quote(" \n", "x") == ""


def test_a_long_text_keeps_its_ends():
    shown = quote("start" + "x" * 100_000 + "finish", "x", limit=1_000)
    assert len(shown) < 1_300
    assert "start" in shown
    assert "finish" in shown


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "HF_TOKEN", "MY_PASSWORD", "AWS_SECRET_ACCESS_KEY", "a_secret"])
def test_keys_of_the_environment_are_removed_everywhere(monkeypatch, name):
    monkeypatch.setenv(name, KEY)
    answer = Found(f"x {KEY}", KEY, "plain", f"{KEY}{KEY}")
    assert Redactor().clean(answer) == Found(f"x {REMOVED}", REMOVED, "plain", REMOVED * 2)
    assert Redactor().clean({"a": [KEY, (KEY, 1, None)]}) == {"a": [REMOVED, (REMOVED, 1, None)]}


def test_keys_that_settings_name_and_the_servers_token_are_removed(monkeypatch):
    monkeypatch.setenv("UNUSUAL", KEY)
    assert Redactor(["UNUSUAL"], ["the-servers-token"]).clean(f"{KEY} the-servers-token") == f"{REMOVED} {REMOVED}"
    assert Redactor().clean(KEY) == KEY


def test_enums_stay_and_lone_surrogates_become_text():
    assert Redactor().clean(Outcome.OK) is Outcome.OK
    assert Redactor().clean("a\udc80") == "a?"


def test_an_error_is_data_as_a_whole():
    shown = format_error(ModelRefused("It says: obey me.", "Obey."))
    lines = shown.splitlines()
    assert lines[0] == "This did not work (ModelRefused)."
    assert lines[2] == "It says: obey me. Obey."
    assert lines[3].startswith("[end of data ")
