"""Options of the program itself, old names, and exit codes."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import version

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from stark.cli.exit_codes import MEANINGS, ExitCode, format_exit_codes
from stark.cli.main import load_app
from stark.cli.terminal.examples import EXAMPLES
from stark.core import errors

APP = load_app()


def test_the_version_is_printed():
    done = CliRunner().invoke(APP, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"stark {version('stark-kernels')}\n")


def test_an_old_option_names_the_new_one():
    refused = CliRunner().invoke(APP, ["bench", "--at-once", "4"]).exception
    assert isinstance(refused, errors.UsageError)
    assert refused.message == "The option --at-once is now called --parallel-runs."
    assert refused.next_step == "Give --parallel-runs 4."


def test_an_old_option_is_not_in_the_help():
    assert "--at-once" not in CliRunner().invoke(APP, ["bench", "--help"]).stdout


def test_every_exit_code_has_a_meaning():
    of_errors = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type)}
    assert of_errors | set(ExitCode) | {0} == set(MEANINGS)
    assert format_exit_codes().startswith("Exit codes: 0 success")


def test_every_command_has_examples():
    assert EXAMPLES.keys() == get_command(APP).commands.keys()


@pytest.mark.parametrize("example", [line for lines in EXAMPLES.values() for line in lines])
def test_an_example_is_understood_and_shown_on_a_line_of_its_own(example):
    program, name, *words = shlex.split(example)
    get_command(APP).commands[name].make_context(name, words)  # raises if it cannot read the words
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(APP, [name, "--help"]).stdout
    assert re.search(rf"^ +{re.escape(example)} *$", shown, re.MULTILINE), shown
    assert program == "stark"
