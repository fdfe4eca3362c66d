"""A process for one candidate, and its lifetime. No torch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stark_worker.processes.channel import Channel
from stark_worker.processes.handles import ForkServer


class CandidateSlot:
    """A process for one candidate, its folder, and this side's ends of its channels."""

    def __init__(
        self, fork_server: ForkServer, parent: Path, environment: Mapping[str, str], order: Mapping[str, Any]
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="candidate-", dir=parent))
        self._reaper = fork_server.reaper
        self._ending: asyncio.Task[None] | None = None
        self._held = contextlib.ExitStack()
        with contextlib.ExitStack() as unless_started, contextlib.ExitStack() as theirs:
            unless_started.callback(shutil.rmtree, self.folder, ignore_errors=True)
            unless_started.callback(self._held.close)
            channel, their_channel = Channel.pair()
            self._held.callback(channel.close)
            theirs.callback(their_channel.close)
            output, print_to = os.pipe()
            self._held.callback(os.close, output)
            theirs.callback(os.close, print_to)
            arena = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._held.callback(os.close, arena)
            channel.send(**order)  # all later messages come from the referee
            self._lifeline = fork_server.start(
                "candidate", self.folder, [their_channel.fileno(), print_to, arena], environment
            )
            unless_started.pop_all()
        self.ends = [channel.fileno(), self._lifeline.fileno(), output, arena]

    def is_alive(self) -> bool:
        """True if its supervisor still runs, which it does as long as the process."""
        poller = select.poll()
        poller.register(self._lifeline, 0)
        return not poller.poll(0)

    def release(self) -> None:
        """Close all ends except the lifeline, which shows when the process and its children are gone."""
        self._held.close()

    def end(self) -> asyncio.Task[None]:
        """End the process, even if a referee holds its ends; the task is done when only the folder is left."""
        if self._ending is None:
            self.release()
            self._ending = self._reaper.end(self._lifeline)
        return self._ending

    def remove(self) -> None:
        """End it, then delete its folder."""
        self._reaper.remove(self.folder, self.end())
