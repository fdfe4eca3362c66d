"""A small part of benchmarks/proofs/soak.py: what a warm worker has open, running and lying about stays the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paths import ROOT

BENCHMARK = ROOT / "benchmarks" / "proofs" / "soak.py"


@pytest.mark.slow
def test_nothing_piles_up_in_a_warm_worker():
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--evaluations", "15", "--every", "5"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": holds") == 4
