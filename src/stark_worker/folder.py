"""Work off requests that lie in a folder: for GPU machines that the host reaches only through a shared folder.

    FOLDER/device.json           what is measured on, written when a worker starts
    FOLDER/heartbeat             changes while a worker is alive
    FOLDER/requests/ID.json      an EvalRequest, put there whole by the host
    FOLDER/working/ID.json       the same while a worker is on it; locked by that worker
    FOLDER/answers/ID.json       {"report": ...}, or {"fault": "machinery" | "task", "message": ...}
    FOLDER/stop                  tells every worker to end

Either side may be restarted at any time. A request whose worker died is taken up by the next one; an answer waits
until the host has read it. Several workers may serve one folder, one per device. No torch here: each request is judged
by a process of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

POLL_S = 0.2
HEARTBEAT_S = 2.0
SLACK_S = 180.0
PARTS = ("requests", "working", "answers")
PACKAGES = str(Path(__file__).resolve().parent.parent)  # a folder, or the file that `stark pack-worker` made
FAULTS = {3: "machinery", 4: "task"}  # by exit code of `python -m stark_worker judge`


def write_whole(path: Path, text: str) -> None:
    """Put a file where it can be seen only when it is complete."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def serve(folder: Path, facts: str) -> None:
    """Work off requests until FOLDER/stop appears or the process is ended. ``facts`` are DeviceFacts as JSON."""
    for part in PARTS:
        (folder / part).mkdir(parents=True, exist_ok=True)
    write_whole(folder / "device.json", facts)
    beat = 0.0
    while not (folder / "stop").exists():
        if time.monotonic() - beat > HEARTBEAT_S:
            beat = time.monotonic()
            write_whole(folder / "heartbeat", str(time.time()))
        with _claim(folder) as request:
            if request is None:
                time.sleep(POLL_S)
            else:
                _work(folder, request)


@contextlib.contextmanager
def _claim(folder: Path) -> Iterator[Path | None]:
    """A request that nobody else works on, locked; None when there is none."""
    for part in ("working", "requests"):  # first what a worker that died has left
        for path in sorted((folder / part).glob("*.json")):
            claimed = folder / "working" / path.name
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                if part == "requests":
                    path.rename(claimed)
                with claimed.open() as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if claimed.exists():  # not finished by another between our look and our lock
                        yield claimed
                        return
    yield None


def _work(folder: Path, request: Path) -> None:
    text = request.read_bytes()
    answer = _judge(text, folder)
    write_whole(folder / "answers" / request.name, json.dumps(answer))
    request.unlink()


def _judge(text: bytes, folder: Path) -> dict[str, object]:
    """One request through a worker process of its own, with the heart beating meanwhile."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stark_worker", "judge"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": PACKAGES},
    )
    deadline = time.monotonic() + _patience_s(text)
    sent: bytes | None = text
    while True:
        try:
            out, err = process.communicate(sent, timeout=HEARTBEAT_S)
            break
        except subprocess.TimeoutExpired:
            sent = None  # communicate remembers what it has not written yet
            write_whole(folder / "heartbeat", str(time.time()))
            if time.monotonic() > deadline:
                process.terminate()
    if process.returncode == 0:
        return {"report": json.loads(out)}
    lines = err.decode(errors="replace").strip().splitlines() or [f"the worker ended with code {process.returncode}"]
    kind = FAULTS.get(process.returncode, "machinery")
    return {"fault": kind, "message": lines[-1].removeprefix("task: ").removeprefix("worker: ")[:500]}


def _patience_s(text: bytes) -> float:
    try:
        limits = json.loads(text)["limits"]
        return float(limits["build_s"]) + float(limits["run_s"]) + SLACK_S
    except (ValueError, KeyError, TypeError):
        return SLACK_S  # not a request; judging will say so
