"""Commands that are suggested have to be those that work."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stark.cli.terminal import command, run


@pytest.fixture
def program(tmp_path, monkeypatch):
    """An installed `stark` that prints its arguments, outside the working folder."""
    path = tmp_path / "of mine" / "bin" / "stark"
    path.parent.mkdir(parents=True)
    path.write_text('#!/bin/sh\necho "$@"\n')
    path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.defpath)
    return path


def test_a_program_that_is_not_on_the_path_is_named_from_where_one_is(program, monkeypatch):
    for called in ("of mine/bin/stark", str(program)):
        monkeypatch.setattr(sys, "argv", [called, "optimize"])
        typed = command.format_command("show", "runs/a b")
        assert shlex.split(typed) == ["of mine/bin/stark", "show", "runs/a b"]
        assert subprocess.run(typed, shell=True, capture_output=True, text=True).stdout == "show runs/a b\n"


def test_a_bare_name_is_enough_where_it_finds_this_very_program(program, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", str(program.parent))
    assert command.format_command("resume", Path("run")) == "stark resume run"
    other = program.parents[1] / "stark"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{other.parent}:{program.parent}")
    assert shlex.split(command.format_command("resume", "run")) == ["of mine/bin/stark", "resume", "run"]
    monkeypatch.chdir(other.parent / "bin" / "..")
    monkeypatch.setattr(sys, "argv", ["/elsewhere/stark"])
    assert shlex.split(command.format_command("resume", "run")) == ["/elsewhere/stark", "resume", "run"]


def test_a_module_is_named_with_its_interpreter(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["somewhere/stark/cli.py"])
    assert shlex.split(command.format_command("show")) == [sys.executable, "-m", "stark.cli", "show"]


def test_the_first_steps_are_true_of_the_playbook(monkeypatch, program, capsys):
    monkeypatch.setattr(sys, "argv", [".venv/bin/stark"])
    run.show_first_steps()
    output = capsys.readouterr().out
    assert ".venv/bin/stark optimize YOUR_TASK.py" in output
    (gpu,) = [line for line in output.splitlines() if line.startswith("A GPU:")]
    assert gpu.index("--target triton") < gpu.index("--target cuda with a real LLM")
