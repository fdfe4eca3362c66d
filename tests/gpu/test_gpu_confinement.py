"""CUDA goes on working in a process that is confined after it has opened the device, and its memory is limited."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import sys
from pathlib import Path

import torch

from stark_worker.sandbox.confine import confine

found = confine(
    Path(sys.argv[1]),
    memory_bytes=4 * 2**30,
    processes=512,
    gpu=True,
    prepare=lambda: torch.zeros(1, device="cuda"),
)
ones = torch.ones(1000, 1000, device="cuda")
assert float((ones @ ones).sum()) == 1e9
assert found.level in ("strong", "standard"), found.gaps
free = torch.cuda.mem_get_info()[0]
assert torch.empty(free * 3 // 4, dtype=torch.uint8, device="cuda").is_cuda  # what is the device's is not limited
assert torch.empty(2**28, dtype=torch.uint8).pin_memory().is_pinned()
try:
    torch.empty(5 * 2**30, dtype=torch.uint8)
except RuntimeError as error:
    assert any(words in str(error) for words in ("can't allocate memory", "not enough memory")), error
else:
    raise AssertionError("more of the host's memory than allowed")
"""


def test_cuda_works_in_a_confined_process(tmp_path):
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # as the worker's processes are
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=alone)
    assert done.returncode == 0, done.stderr
