"""Where results of benchmarks lie, and what each says besides its figures. No torch: some measure a host without it."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

_NUMBERS = re.compile(r"\[[-+.,eE\d\s]+\]")  # a list of samples is one line of a file


def result_file(benchmark: str, device: str) -> Path:
    """The file of one benchmark on one device, as it is named in words; STARK_RESULTS names another folder."""
    folder = Path(os.environ.get("STARK_RESULTS") or ROOT / "benchmarks" / "results")
    return folder / f"{benchmark}-{re.sub(r'[^a-z0-9]+', '-', device.lower())}.json"


def facts(device: str) -> dict[str, Any]:
    """When, from which state of the code and on what."""
    # a machine that was handed a plain checkout is told the commit
    commit = (
        os.environ.get("STARK_COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip()
    )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit or "unknown",
        "device": device,
        "cores": len(os.sched_getaffinity(0)),
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def read(file: Path) -> dict[str, Any]:
    """What an earlier part of the same benchmark left, or nothing."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def write(file: Path, results: dict[str, Any]) -> None:
    """In one step, so that a part that is cut off leaves what was there."""
    file.parent.mkdir(exist_ok=True)
    beside = file.with_suffix(".new")
    text = _NUMBERS.sub(lambda found: " ".join(found.group().split()), json.dumps(results, indent=1))
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(file)
