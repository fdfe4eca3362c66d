"""benchmarks/studies/policies.py: what it cannot make figures of is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paths import ROOT

SCRIPT = ROOT / "benchmarks" / "studies" / "policies.py"


def study(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True)


@pytest.mark.parametrize("runs", [-1, 0, 1])
def test_fewer_runs_than_an_interval_needs_are_refused(runs):
    refused = study("--runs", runs)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.endswith("error: --runs has to be at least 2: a single run has no interval\n")


def test_two_runs_are_enough():
    done = study("--runs", 2, "--attempts", 2)
    assert done.returncode == 0, done.stderr
    assert "epsilon-greedy" in done.stdout
