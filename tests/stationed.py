"""A station that judges for tests: real processes, kept warm over all tests of a module."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stark_worker.processes import descendants
from stark_worker.protocol import EvalReport, EvalRequest, Target
from stark_worker.station import Station


class Stationed:
    """A station and the event loop it lives in, for callers that just want an answer."""

    def __init__(self, station: Station, loop: asyncio.AbstractEventLoop) -> None:
        self._station, self._loop = station, loop

    def judge(self, request: EvalRequest, within_s: float | None = None) -> EvalReport:
        async def judged() -> EvalReport:
            async with asyncio.timeout(within_s):
                return await self._station.judge(request)

        return asyncio.run_coroutine_threadsafe(judged(), self._loop).result()

    def left(self) -> tuple[set[str], set[str]]:
        """Files and processes there are besides warm parents and referees."""
        folder = Path(self._station._folder.name)
        files = {path.name for path in folder.iterdir() if not path.name.startswith(("referee-", "output"))}
        return files, processes_below(os.getpid()) - {"stark-nursery", "stark-warden", "stark-referee"}


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
    asyncio.run_coroutine_threadsafe(station.__aenter__(), loop).result()
    try:
        yield Stationed(station, loop)
    finally:
        asyncio.run_coroutine_threadsafe(station.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
