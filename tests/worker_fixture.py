"""Stations that judge for tests: real processes, kept warm over all tests of a module, here or behind a folder."""

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

from stark_worker.processes.process_tree import descendants
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest, Target
from stark_worker.scheduler.worker import Station

GONE_S = 60.0  # who is just ending may have to wait for its turn on a busy machine
SOURCES = Path(__file__).parents[1] / "src"


class Stationed:
    """A station and the event loop it lives in, for callers that just want an answer."""

    def __init__(self, station: Station, loop: asyncio.AbstractEventLoop) -> None:
        self._station, self._loop = station, loop
        self._others = set(below(os.getpid()))  # what other tests have started here

    def judge(self, request: EvalRequest, within_s: float | None = None) -> EvalReport:
        async def judged() -> EvalReport:
            async with asyncio.timeout(within_s):
                return await self._station.judge(request)

        return asyncio.run_coroutine_threadsafe(judged(), self._loop).result()

    def left(self) -> tuple[set[str], set[str]]:
        """Files and processes that stay besides warm parents and referees; who is just ending gets a moment."""
        until = time.monotonic() + GONE_S
        while any(found := self._left()) and time.monotonic() < until:
            time.sleep(0.05)
        return found

    def _left(self) -> tuple[set[str], set[str]]:
        folder = Path(self._station._folder.name)
        kept = [seat.folder.name for lane in self._station._lanes._queue if (seat := lane._spare_seat)]  # for the next
        warm = ("referee-", "output", "triton-", *kept)
        files = {path.name for path in folder.iterdir() if not path.name.startswith(warm)}
        found = {process: name for process, name in below(os.getpid()).items() if process not in self._others}
        names = {name for process, name in found.items() if folder_of(process) not in kept}
        return files, names - {"stark-nursery", "stark-warden", "stark-referee"}


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
def stationed(shared: Path, target: Target = Target.CPU) -> Iterator[Stationed]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    station = Station(target, shared, allow_weak_sandbox=True)
    here = Stationed(station, loop)
    asyncio.run_coroutine_threadsafe(station.__aenter__(), loop).result()
    try:
        yield here
    finally:
        asyncio.run_coroutine_threadsafe(station.__aexit__(None, None, None), loop).result()
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
