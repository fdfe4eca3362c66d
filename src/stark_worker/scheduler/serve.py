"""Serves requests from a folder, for GPU machines that the host reaches only through a shared folder. No torch.

    FOLDER/device.json           facts of the device, written when a worker starts
    FOLDER/heartbeat             changes while a worker is alive
    FOLDER/requests/ID.json      an EvalRequest, written by the host
    FOLDER/working/ID.json       the same while a worker judges it; locked by that worker
    FOLDER/answers/ID.json       {"report": ...}, or {"fault": a kind of fault, "message": ...}
    FOLDER/asked/ID.json         locked by the host that waits for the answer
    FOLDER/stop                  ends every worker, including those that start while it exists

Either side may be restarted at any time, and several workers and hosts may share one folder. The next worker takes up a
request whose worker died. Each request has its own ID, so hosts with equal requests do not take each other's answers;
if a host died, the next one with an equal request continues. A worker that starts deletes answers that are weeks old.
It retries for a while if the disk is full or the share is away.
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
MAX_MESSAGE_CHARS = 1_000
ANSWER_LIFETIME_S = 30 * 86_400.0
RETRY_EVERY_S, GIVE_UP_AFTER_S = 5.0, 120.0  # while the folder cannot be used

log = logging.getLogger(__name__)

Done = TypeVar("Done")


async def serve(folder: Path, worker: Worker) -> None:
    """Serve requests until FOLDER/stop appears, as many at a time as the worker has slots.

    Raise ``MachineryFault`` if the folder stays unusable.
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
        raise faults.exceptions[0] from failed  # all tasks fail for the same folder: report one
    log.warning("The worker ends because %s exists. Delete it before you start a worker here again.", folder / "stop")


async def _serve_requests(folder: Path, worker: Worker) -> None:
    async with asyncio.TaskGroup() as group:
        beating = group.create_task(_write_heartbeats(folder))
        under_way: set[asyncio.Task[None]] = set()
        while not await _retry(folder, (folder / "stop").exists):
            has_slot = len(under_way) < worker.slots
            if has_slot and (claimed := await _retry(folder, lambda: _claim(folder))):
                under_way.add(group.create_task(_answer(folder, claimed, worker)))
            else:
                await asyncio.sleep(POLL_S)
            under_way = {task for task in under_way if not task.done()}
        await asyncio.gather(*under_way)
        beating.cancel()


async def _retry(folder: Path, act: Callable[[], Done]) -> Done:
    """Do something in the folder, and retry while it fails: disks are cleaned up and shares come back."""
    began = time.monotonic()
    while True:
        try:
            return act()
        except OSError as error:
            if time.monotonic() - began > GIVE_UP_AFTER_S:
                raise MachineryFault(
                    f"{folder} cannot be used: {error}. Retried for {GIVE_UP_AFTER_S:.0f} s. Make room there or bring "
                    "the folder back, and start the worker again; it then answers the open requests."
                ) from error
            log.warning("%s cannot be used now and will be retried: %s", folder, error)
            await asyncio.sleep(RETRY_EVERY_S)


def _delete_old_answers(folder: Path) -> None:
    """Delete old answers that no host fetched."""
    for path in (*(folder / ANSWERS).iterdir(), *(folder / CLAIMS).iterdir()):
        with contextlib.suppress(OSError):  # another worker deleted it, or this user may not
            if time.time() - path.stat().st_mtime > ANSWER_LIFETIME_S and (file := try_lock(path)):
                with file:
                    path.unlink()


async def _write_heartbeats(folder: Path) -> None:
    while True:
        await _retry(folder, lambda: write_atomically(folder / "heartbeat", str(time.time())))
        await asyncio.sleep(HEARTBEAT_S)


def _claim(folder: Path) -> IO[str] | None:
    """Open and lock a request that no other worker holds; None if there is none."""
    for path in _open_requests(folder):
        claimed = folder / "working" / path.name
        with contextlib.suppress(FileNotFoundError):  # another worker was faster
            if path != claimed:
                path.rename(claimed)
        if file := try_lock(claimed):
            return file
    return None


def _open_requests(folder: Path) -> Iterator[Path]:
    for part in ("working", "requests"):  # first the requests of workers that died
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
        return {"fault": fault.kind, "message": str(fault)[:MAX_MESSAGE_CHARS]}
    except (ProtocolError, OSError) as fault:
        return {"fault": MachineryFault.kind, "message": str(fault)[:MAX_MESSAGE_CHARS]}
