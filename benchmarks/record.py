"""Result files of the benchmarks, and the facts that each holds besides its figures. Works without torch."""

from __future__ import annotations

import functools
import hashlib
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
SOURCE_SUFFIXES = {".py", ".c", ".cpp", ".h"}

_NUMBERS = re.compile(r"\[[-+.,eE\d\s]+\]")  # a list of samples is one line of a file


def result_file(benchmark: str, device: str = "") -> Path:
    """The file of one benchmark, on one device as it is named in words, or of the host alone.

    STARK_RESULTS names another folder than that of the committed results.
    """
    name = re.sub(r"[^a-z0-9]+", "-", f"{benchmark} {device}".strip().lower())
    return Path(os.environ.get("STARK_RESULTS") or ROOT / "benchmarks" / "results") / f"{name}.json"


def commit() -> str:
    """Return the commit. STARK_COMMIT names it where the code is a plain copy."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    named = os.environ.get("STARK_COMMIT")
    return named or subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"


@functools.cache  # the source that this process has imported, whatever is edited meanwhile
def worker_digest(folder: Path = ROOT / "src" / "stark_worker") -> str:
    """Return a digest of the worker's source. A result about the judge counts only for the source that judged."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in SOURCE_SUFFIXES:
            name, content = path.relative_to(folder).as_posix(), path.read_bytes()
            total.update(f"{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    return total.hexdigest()[:12]


def host() -> str:
    """System and processor. The release of its kernel says nothing about what was measured."""
    return f"{platform.system()} {platform.machine()}"


def facts(device: str = host()) -> dict[str, Any]:
    """Return date, commit, digest of the worker, and device."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "digest": worker_digest(),
        "device": device,
        "cores": len(os.sched_getaffinity(0)),
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def read(file: Path) -> dict[str, Any]:
    """Return the results of an earlier part of the same benchmark, or nothing."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def write(file: Path, results: dict[str, Any]) -> None:
    """In one step, so that a part that is cut off leaves what was there."""
    file.parent.mkdir(exist_ok=True)
    new = file.with_suffix(".new")
    text = _NUMBERS.sub(lambda found: " ".join(found.group().split()), json.dumps(results, indent=1))
    new.write_text(text + "\n", encoding="utf-8")
    new.replace(file)
