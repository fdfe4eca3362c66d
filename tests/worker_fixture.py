"""Workers that judge for tests: real processes, kept warm over all tests of a module, here or behind a folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stark_process import warm_process
from stark_worker.processes.process_tree import descendants
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest, Target
from stark_worker.scheduler.worker import Worker

EXIT_TIMEOUT_S = 60.0  # who is just ending may have to wait for its turn on a busy machine
SOURCES = Path(__file__).parents[1] / "src"


class SyncWorker:
    """A worker and the event loop it lives in, for callers that just want an answer."""

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self._worker, self._loop = worker, loop
        self._others = set(below(os.getpid()))  # what other tests have started here

    def judge(self, request: EvalRequest, within_s: float | None = None) -> EvalReport:
        async def judged() -> EvalReport:
            async with asyncio.timeout(within_s):
                return await self._worker.judge(request)

        return asyncio.run_coroutine_threadsafe(judged(), self._loop).result()

    def left(self) -> tuple[set[str], set[str]]:
        """Files and processes that stay besides warm parents and referees; who is just ending gets a moment."""
        until = time.monotonic() + EXIT_TIMEOUT_S
        while any(found := self._left()) and time.monotonic() < until:
            time.sleep(0.05)
        return found

    def _left(self) -> tuple[set[str], set[str]]:
        folder = Path(self._worker._folder.name)
        kept = [slot.folder.name for lane in self._worker._lanes._queue if (slot := lane._spare_slot)]  # for the next
        warm = ("referee-", "output", "triton-", *kept)
        files = {path.name for path in folder.iterdir() if not path.name.startswith(warm)}
        found = {
            process: name
            for process, name in below(os.getpid()).items()
            if process not in {*self._others, warm_process()}
        }
        names = {name for process, name in found.items() if folder_of(process) not in kept}
        return files, names - {"stark-forksrv", "stark-supervise", "stark-referee", "stark-tester"}


def folder_of(process: int) -> str:
    """The name of the folder a process works in; none of one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cwd").readlink().name
    return ""


def processes_below(ancestor: int) -> set[str]:
    """The names of all processes that descend from one."""
    return set(below(ancestor).values())


def below(ancestor: int) -> dict[int, str]:
    """All processes that descend from one, with their names; left out are those that ended and were not noticed yet."""
    return {number: each.name for number, each in descendants(ancestor).items() if each.state != "Z"}


@contextmanager
def running_worker(shared: Path, target: Target = Target.CPU) -> Iterator[SyncWorker]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    worker = Worker(target, shared, allow_weak_sandbox=True)
    here = SyncWorker(worker, loop)
    asyncio.run_coroutine_threadsafe(worker.__aenter__(), loop).result()
    try:
        yield here
    finally:
        asyncio.run_coroutine_threadsafe(worker.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def serving(folder: Path, program: tuple[str, ...] = ("-m", "stark_worker")) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that serves a folder, as it is started on another machine."""
    command = [sys.executable, *program, "serve", str(folder), "--allow-weak-sandbox"]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(SOURCES)}, start_new_session=True)
    try:
        yield process
    finally:
        (folder / "stop").touch()
        process.wait()


def is_running(*command: str) -> bool:
    """True if a process with exactly this command line is alive."""
    wanted = b"".join(f"{word}\0".encode() for word in command)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == wanted:
                return True
        except OSError:
            continue
    return False
