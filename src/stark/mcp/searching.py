"""The tools on searches and their runs. Plain functions without the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stark.core.errors import UsageError
from stark.mcp import files, runs
from stark.mcp.files import Outputs
from stark.mcp.results import Exported
from stark.mcp.roots import Roots
from stark.mcp.rules import Choice, SearchChoice, ServerRules
from stark.mcp.runs import Shown, Status
from stark.mcp.searches import Search, Searches
from stark.mcp.waiting import Activity

if TYPE_CHECKING:
    from stark.run.assembly import Job

MAX_WAIT_S = 50.0  # some clients end a call after 60 s


class RunTools:
    """Starts, stops and reads searches."""

    def __init__(self, rules: ServerRules, searches: Searches) -> None:
        self._rules, self._searches = rules, searches

    async def optimize(
        self, roots: Roots, task: str, start_from: str | None, hint: str, choice: Choice, search: SearchChoice
    ) -> Status:
        """Start a search in the background, in a new folder of the first root."""
        path, given = roots.source_file(task), roots.source_file(start_from) if start_from else None
        settings = self._rules.search(choice, search)
        prepare = await asyncio.to_thread(_load_prepare)
        job = prepare(path, settings, None, given, hint)
        job = replace(job, folder=roots.runs_folder() / job.folder.name)
        return runs.status_of(job.folder, self._searches.start(job))

    async def status(self, roots: Roots, run: str, wait_s: float, activity: Activity) -> Status:
        """Return the state of a run. With ``wait_s``, wait until an attempt lands or the search ends."""
        folder, search = self.find(roots, run)
        if search is not None and search.is_running and wait_s > 0:
            activity.begin(f"waiting for {folder.name}")
            search.landed.clear()
            try:
                async with asyncio.timeout(min(wait_s, MAX_WAIT_S)):
                    await search.landed.wait()
            except TimeoutError:
                pass  # its state is the answer
        return runs.status_of(folder, search)

    async def stop(self, roots: Roots, run: str) -> Status:
        """Stop a search of this server."""
        folder, search = self.find(roots, run)
        if search is None or not search.is_running:
            raise UsageError(f"{folder.name} does not run in this server.", "See its state with the tool status.")
        await self._searches.stop(search)
        return runs.status_of(folder, search)

    def show(self, roots: Roots, run: str, node: int | None, against: int | None) -> Shown:
        """Return the tree of a run, or one node in full."""
        return runs.show_run(self.find(roots, run)[0], node, against)

    def export(self, roots: Roots, run: str, outputs: Outputs) -> Exported:
        """Write the confirmed winner of a run."""
        return files.export_run(runs.read_run(self.find(roots, run)[0]), outputs)

    def find(self, roots: Roots, run: str) -> tuple[Path, Search | None]:
        """Return the folder of a run, and the search if this server started it."""
        for folder in runs.possible_folders(roots, run):
            if (search := self._searches.find(folder)) or folder.exists():
                return folder, search
        raise UsageError(
            f"There is no run {run!r} in the roots.", "Name the run that optimize returned, or its folder."
        )


def _load_prepare() -> Callable[..., Job]:
    """Load the libraries of a search, which takes seconds."""
    from stark.run.api import prepare

    return prepare
