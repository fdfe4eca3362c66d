"""Work off requests that lie in a folder: for GPU machines that the host reaches only through a shared folder.

    FOLDER/device.json           what is measured on, written when a worker starts
    FOLDER/heartbeat             changes while a worker is alive
    FOLDER/requests/ID.json      an EvalRequest, put there whole by the host
    FOLDER/working/ID.json       the same while a worker is on it; locked by that worker
    FOLDER/answers/ID.json       {"report": ...}, or {"fault": "machinery" | "task" | "sandbox", "message": ...}
    FOLDER/stop                  tells every worker to end

Either side may be restarted at any time. A request whose worker died is taken up by the next one; an answer waits
until the host has read it. Several workers may serve one folder. No torch here.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from stark_worker.faults import MachineryFault, TaskFault
from stark_worker.protocol import EvalRequest, ProtocolError, from_json, to_json
from stark_worker.station import Station

POLL_S = 0.2
HEARTBEAT_S = 2.0
LONGEST_MESSAGE = 1_000
PARTS = ("requests", "working", "answers")


def write_whole(path: Path, text: str) -> None:
    """Put a file where it can be seen only when it is complete."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


async def serve(folder: Path, station: Station) -> None:
    """Work off requests until FOLDER/stop appears or the process is ended, as many at once as the station has room."""
    for part in PARTS:
        (folder / part).mkdir(parents=True, exist_ok=True)
    write_whole(folder / "device.json", to_json(await station.device()))
    async with asyncio.TaskGroup() as group:
        beating = group.create_task(_beat(folder))
        under_way: set[asyncio.Task[None]] = set()
        while not (folder / "stop").exists():
            if len(under_way) < station.slots and (claimed := _claim(folder)):
                under_way.add(group.create_task(_work(folder, claimed, station)))
            else:
                await asyncio.sleep(POLL_S)
            under_way = {task for task in under_way if not task.done()}
        await asyncio.gather(*under_way)
        beating.cancel()


async def _beat(folder: Path) -> None:
    while True:
        write_whole(folder / "heartbeat", str(time.time()))
        await asyncio.sleep(HEARTBEAT_S)


def _claim(folder: Path) -> IO[str] | None:
    """A request that nobody else works on, open and locked; None when there is none."""
    for path in _waiting(folder):
        claimed = folder / "working" / path.name
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            if path != claimed:
                path.rename(claimed)
            file = claimed.open()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if claimed.exists():  # not finished by another between our look and our lock
                    return file
            except BlockingIOError:
                pass
            file.close()
    return None


def _waiting(folder: Path) -> Iterator[Path]:
    for part in ("working", "requests"):  # first what a worker that died has left
        yield from sorted((folder / part).glob("*.json"))


async def _work(folder: Path, claimed: IO[str], station: Station) -> None:
    with claimed:
        request = Path(claimed.name)
        answer = await _judge(claimed.read(), station)
        write_whole(folder / "answers" / request.name, json.dumps(answer))
        request.unlink()


async def _judge(text: str, station: Station) -> dict[str, object]:
    try:
        return {"report": json.loads(to_json(await station.judge(from_json(EvalRequest, text))))}
    except (TaskFault, MachineryFault) as fault:
        return {"fault": fault.kind, "message": str(fault)[:LONGEST_MESSAGE]}
    except (ProtocolError, OSError) as fault:
        return {"fault": MachineryFault.kind, "message": str(fault)[:LONGEST_MESSAGE]}
