"""The searches that run in the background of the server, each in the folder of its run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stark.core.errors import StarkError
from stark.core.records import Event, EventKind
from stark.mcp.waiting import Activity
from stark.mcp.workers import Workers

if TYPE_CHECKING:
    from stark.run.assembly import Job

MAX_SEARCHES = 8  # each holds a store and its attempts; the devices are shared anyway


@dataclass
class Search:
    """A search that this server has started."""

    folder: Path
    activity: Activity
    work: asyncio.Task[None]
    landed: asyncio.Event
    error: StarkError | None = None

    @property
    def is_running(self) -> bool:
        return not self.work.done()


class Searches:
    """Starts and stops searches. They end with the server; a run stays resumable."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._by_folder: dict[Path, Search] = {}

    def start(self, job: Job) -> Search:
        """Start a search and return at once."""
        running = [search for search in self._by_folder.values() if search.is_running]
        if len(running) >= MAX_SEARCHES:
            raise StarkError(f"{MAX_SEARCHES} searches run already.", "Wait until one ends, or stop one.")
        activity, landed = Activity("waiting for the worker"), asyncio.Event()
        search = Search(job.folder, activity, asyncio.create_task(self._work(job, activity, landed)), landed)
        self._by_folder[job.folder] = search
        search.work.add_done_callback(lambda work: _note_end(search, work))
        return search

    def find(self, folder: Path) -> Search | None:
        """Return the search in this folder, if this server started it."""
        return self._by_folder.get(folder)

    async def stop(self, search: Search) -> None:
        """End a search. Its attempts in flight are made again if the run is resumed."""
        search.work.cancel()
        await asyncio.wait({search.work})

    async def close(self) -> None:
        """End every search."""
        await asyncio.gather(*(self.stop(search) for search in self._by_folder.values() if search.is_running))

    async def _work(self, job: Job, activity: Activity, landed: asyncio.Event) -> None:
        from stark.run.api import start

        def listen(event: Event) -> None:
            activity.begin(_describe(event))
            if event.kind is EventKind.LANDED:
                landed.set()

        async with self._workers.lend(job.settings.evaluation) as lent:
            await start(job, listen, evaluator=lent.evaluator)


def _describe(event: Event) -> str:
    number = "" if event.number is None else f" attempt {event.number}"
    steps = {
        EventKind.BEGUN: f"began{number}",
        EventKind.ASKING: f"asking the {event.text} model for{number}",
        EventKind.EVALUATING: f"judging{number}",
        EventKind.LANDED: f"finished{number}",
        EventKind.ENDED: "ended",
    }
    return steps.get(event.kind, "confirming the fastest candidate")


def _note_end(search: Search, work: asyncio.Task[None]) -> None:
    """Keep the error of a search, and wake every call that waits for it."""
    search.landed.set()
    if work.cancelled():
        search.activity.begin("stopped")
    elif isinstance(error := work.exception(), StarkError):
        search.error = error
        search.activity.begin("failed")
    elif error is not None:
        search.error = StarkError(f"The search ended by a bug in STARK: {type(error).__name__}.", "Please report it.")
        search.activity.begin("failed")
