"""The first run of a newcomer, as `scripts/first-run` starts it: the real command, task, compilers and timings."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from paths import ROOT
from stark.store.open import open_store

SCRIPT = ROOT / "scripts" / "first-run"
STARK = Path(sys.executable).parent / "stark"  # what set-up installs


def first_run(*more: object) -> list[str]:
    """The command at the script's end with what a user adds; the set-up before it is what this test runs in."""
    (line,) = re.findall(r'^exec \.venv/bin/stark (.+) "\$@"$', SCRIPT.read_text(), re.MULTILINE)
    return [str(STARK), *shlex.split(line), *map(str, more)]


def test_the_first_run_ends_with_a_kernel_that_is_verified_to_be_faster(tmp_path):
    folder = tmp_path / "run"
    done = subprocess.run(
        first_run("--attempts", 4, "--run", folder),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout
    for row in ("PyTorch eager", "torch.compile", "ours"):
        assert re.search(rf"^{re.escape(row)}.* ms +[\d.]+x$", told, re.MULTILINE), f"no {row} in\n{told}"
    for took, eager, speed in re.findall(r"^(?:torch|ours).* ([\d.]+) ms +([\d.]+) ms +([\d.]+)x$", told, re.MULTILINE):
        assert float(eager) / float(took) == pytest.approx(float(speed), rel=0.02), told
    kernel = re.search(r"^The kernel: +(.+best\.py) ", told, re.MULTILINE)
    assert kernel is not None, told
    assert "class ModelNew" in Path(kernel[1]).read_text()
    for step in ("Look at the tree:", "Go on:", "Your own model:", "A real LLM:", "A GPU:"):
        assert f"\n{step}" in told, f"no {step} in\n{told}"
    shown = re.search(r"^Look at the tree: (.+)$", told, re.MULTILINE)
    assert shown is not None
    again = subprocess.run(shown[1], shell=True, capture_output=True, text=True, cwd=ROOT)
    assert again.returncode == 0, again.stderr
    assert "gated_activation" in again.stdout
    assert verified_speedup(folder) >= 1.5


def verified_speedup(folder: Path) -> float:
    """How much faster the stored winner was when it was judged anew in turns with the reference."""
    with closing(open_store(folder, write=False)) as store:
        (record,) = store.runs()
        final = store.final(record.id)
    assert final is not None
    assert final.holds
    assert final.verified.timing is not None
    assert final.verified.rival is not None
    return final.verified.rival.median_ms / final.verified.timing.median_ms
