"""The worker as one file: copied somewhere and run there by a process that knows nothing of this repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stark.report.exports import write_worker
from stark_worker.doctor.smoke_test import KERNELS, TASK
from stark_worker.processes.workdir import RESOURCES_FILE
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest, Target

INCLUDING = KERNELS[Target.CPU].replace('CPP = """', 'CPP = """\n#include <torch/extension.h>')


@pytest.fixture
def packed(tmp_path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    write_worker(tmp_path / "elsewhere" / "worker.pyz")
    return tmp_path / "elsewhere" / "worker.pyz"


def test_a_packed_worker_builds_with_the_light_headers_and_leaves_no_file(packed, tmp_path):
    places = {"XDG_CACHE_HOME": tmp_path / "cache", "TMPDIR": tmp_path / "temporary"}
    for place in places.values():
        place.mkdir()
        place.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, packed.name, "judge", "--allow-weak-sandbox"],
        cwd=packed.parent,
        env=environment | {name: str(place) for name, place in places.items()},
        input=to_json(EvalRequest(TASK, INCLUDING)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = from_json(EvalReport, done.stdout)
    assert report.outcome is Outcome.OK, report.log
    (built,) = (tmp_path / "cache" / "stark" / "extensions").iterdir()
    assert (built / RESOURCES_FILE).exists()  # torch's own way leaves none
    assert list((tmp_path / "temporary").iterdir()) == []
