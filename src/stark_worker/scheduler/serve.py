"""Work off requests that lie in a folder: for GPU machines that the host reaches only through a shared folder.

    FOLDER/device.json           what is measured on, written when a worker starts
    FOLDER/heartbeat             changes while a worker is alive
    FOLDER/requests/ID.json      an EvalRequest, put there whole by the host
    FOLDER/working/ID.json       the same while a worker is on it; locked by that worker
    FOLDER/answers/ID.json       {"report": ...}, or {"fault": a kind of ``faults``, "message": ...}
    FOLDER/asked/ID.json         locked by the host that waits for the answer
    FOLDER/stop                  tells every worker to end, also those that start while it is there

Either side may be restarted at any time. A request whose worker died is taken up by the next one. Each asking has a
name of its own, so that hosts which ask the same do not take each other's answer; one whose host died is taken up by
the next that asks the same. An answer that nobody fetches goes when a worker starts weeks later. Several workers and
several hosts may use one folder. A full disk or a share that is away is waited for, but not for long. No torch here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

from stark_worker.protocol.codec import ProtocolError, from_json, to_json
from stark_worker.protocol.errors import MachineryFault, TaskFault
from stark_worker.protocol.folder import ANSWERS, CLAIMS, FOLDERS, try_lock, write_atomically
from stark_worker.protocol.request import EvalRequest
from stark_worker.scheduler.worker import Worker

POLL_S = 0.2


HEARTBEAT_S = 2.0


LONGEST_MESSAGE = 1_000


ANSWER_LIFETIME_S = 30 * 86_400.0  # how long an answer waits for its host


RETRY_EVERY_S, GIVE_UP_AFTER_S = (
    5.0,
    120.0,
)  # a folder that cannot be used is tried again that often, and given up after that long


log = logging.getLogger(__name__)


Done = TypeVar("Done")


async def serve(folder: Path, worker: Worker) -> None:
    """Work off requests until FOLDER/stop appears or the process is ended, as many at once as the worker has room.

    A folder that cannot be used for long is a ``MachineryFault``.
    """
    for part in FOLDERS:
        (folder / part).mkdir(parents=True, exist_ok=True)
    _delete_old_answers(folder)
    write_atomically(folder / "device.json", to_json(await worker.device()))
    try:
        await _serve_requests(folder, worker)
    except ExceptionGroup as failed:
        if (faults := failed.subgroup(MachineryFault)) is None:
            raise
        raise faults.exceptions[0] from failed  # the folder fails everybody alike: one says it
    stop = folder / "stop"
    log.warning("The worker ends because %s is there. Delete that before a worker is to serve the folder again.", stop)


async def _serve_requests(folder: Path, worker: Worker) -> None:
    async with asyncio.TaskGroup() as group:
        beating = group.create_task(_write_heartbeats(folder))
        under_way: set[asyncio.Task[None]] = set()
        while not await _retry(folder, (folder / "stop").exists):
            room = len(under_way) < worker.slots
            if room and (claimed := await _retry(folder, lambda: _claim(folder))):
                under_way.add(group.create_task(_answer(folder, claimed, worker)))
            else:
                await asyncio.sleep(POLL_S)
            under_way = {task for task in under_way if not task.done()}
        await asyncio.gather(*under_way)
        beating.cancel()


async def _retry(folder: Path, act: Callable[[], Done]) -> Done:
    """Do something in the folder, again and again while that fails: disks are tidied up and shares come back."""
    began = time.monotonic()
    while True:
        try:
            return act()
        except OSError as error:
            if time.monotonic() - began > GIVE_UP_AFTER_S:
                raise MachineryFault(
                    f"{folder} cannot be used: {error}. It was tried for {GIVE_UP_AFTER_S:.0f} s. Make room there or bring "
                    "the folder back, and start the worker again; requests that have no answer yet are taken up then."
                ) from error
            log.warning("%s cannot be used now and is tried again: %s", folder, error)
            await asyncio.sleep(RETRY_EVERY_S)


def _delete_old_answers(folder: Path) -> None:
    """Drop what no host has come back for."""
    for path in (*(folder / ANSWERS).iterdir(), *(folder / CLAIMS).iterdir()):
        with contextlib.suppress(OSError):  # another tidies too, or it is not ours to tidy
            if time.time() - path.stat().st_mtime > ANSWER_LIFETIME_S and (file := try_lock(path)):
                with file:
                    path.unlink()


async def _write_heartbeats(folder: Path) -> None:
    while True:
        await _retry(folder, lambda: write_atomically(folder / "heartbeat", str(time.time())))
        await asyncio.sleep(HEARTBEAT_S)


def _claim(folder: Path) -> IO[str] | None:
    """A request that nobody else works on, open and locked; None when there is none."""
    for path in _open_requests(folder):
        claimed = folder / "working" / path.name
        with contextlib.suppress(FileNotFoundError):  # another was faster
            if path != claimed:
                path.rename(claimed)
        if file := try_lock(claimed):
            return file
    return None


def _open_requests(folder: Path) -> Iterator[Path]:
    for part in ("working", "requests"):  # first what a worker that died has left
        yield from sorted((folder / part).glob("*.json"))


async def _answer(folder: Path, claimed: IO[str], worker: Worker) -> None:
    with claimed:
        request = Path(claimed.name)
        answer = json.dumps(await _judge(await _retry(folder, claimed.read), worker))
        await _retry(folder, lambda: write_atomically(folder / ANSWERS / request.name, answer))
        await _retry(folder, lambda: request.unlink(missing_ok=True))


async def _judge(text: str, worker: Worker) -> dict[str, object]:
    try:
        return {"report": json.loads(to_json(await worker.judge(from_json(EvalRequest, text))))}
    except (TaskFault, MachineryFault) as fault:
        return {"fault": fault.kind, "message": str(fault)[:LONGEST_MESSAGE]}
    except (ProtocolError, OSError) as fault:
        return {"fault": MachineryFault.kind, "message": str(fault)[:LONGEST_MESSAGE]}
