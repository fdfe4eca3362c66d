"""TODO."""

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
    """A process for one candidate, with its folder, and our ends of everything that leads to it."""

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
            channel.send(**order)  # what it hears next comes from the referee
            self._lifeline = fork_server.start(
                "candidate", self.folder, [their_channel.fileno(), print_to, arena], environment
            )
            unless_started.pop_all()
        self.ends = [channel.fileno(), self._lifeline.fileno(), output, arena]

    def is_alive(self) -> bool:
        """Whether its supervisor is there still, which it is as long as the process is."""
        look = select.poll()
        look.register(self._lifeline, 0)
        return not look.poll(0)

    def release(self) -> None:
        """Keep none of the ends but the lifeline, by which we learn when nothing of the process is left."""
        self._held.close()

    def end(self) -> asyncio.Task[None]:
        """End the process, also where a referee holds on to it; done when nothing of it is left but its folder."""
        if self._ending is None:
            self.release()
            self._ending = self._reaper.end(self._lifeline)
        return self._ending

    def remove(self) -> None:
        """End it, and have its folder go afterwards."""
        self._reaper.remove(self.folder, self.end())
