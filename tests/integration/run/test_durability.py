"""A fiftieth of benchmarks/proofs/durability.py: real kills, a real server, a real store."""

from __future__ import annotations

import subprocess
import sys

from paths import ROOT

BENCHMARK = ROOT / "benchmarks" / "proofs" / "durability.py"


def test_nothing_is_lost_repeated_or_overspent_when_a_run_is_killed():
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--kills", "4", "--seed", "1"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": holds") == 3
