"""Processes in somebody's keeping: how to ask a nursery for one, and how to let go of it. No torch.

Whoever holds the lifeline keeps the process alive. Letting go ends it and everything it started, also when the holder
itself dies: then the system lets go.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from stark_worker.processes.channel import Channel, ChannelClosed, MessageMalformed
from stark_worker.processes.environment import environment, packages
from stark_worker.processes.process_tree import END_S
from stark_worker.processes.workdir import OUTPUT_FILE, read_plainly
from stark_worker.protocol.errors import MachineryFault

LAST_BYTES = 2_000


GONE_S = 2 * END_S  # how long to wait for the end of what was let go


# Importing torch's builder of extensions asks for the GPU, and what is forked after that can never use it. So a warm
# parent sees none, and is told to count without starting the driver. Libraries of its own start no threads either.
_UNTOUCHED = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "OPENBLAS_NUM_THREADS": "1"}


_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from stark_worker.processes.fork_server import main; "
    "main(int(sys.argv[2]), sys.argv[3])"
)


class Remains:
    """What is left of processes nobody needs any more. It goes in threads: no event loop stands still meanwhile, and
    no verdict waits for the removal of all that a candidate wrote.
    """

    def __init__(self) -> None:
        self._going = set[asyncio.Task[None]]()

    def end(self, lifeline: Channel) -> asyncio.Task[None]:
        """Let go of a process; done when nothing of it is left."""
        return self._keep(asyncio.to_thread(let_go, lifeline))

    def remove(self, folder: Path, ending: asyncio.Task[None]) -> None:
        """Have the folder of a process go as soon as nobody writes there any more."""
        self._keep(_removed(folder, ending))

    async def gone(self) -> None:
        """Wait until nothing is left."""
        while self._going:
            await asyncio.wait(self._going)

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._going.add(task)
        task.add_done_callback(self._going.discard)
        return task


async def _removed(folder: Path, ending: asyncio.Task[None]) -> None:
    await asyncio.wait([ending])
    await asyncio.to_thread(_remove, folder)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # a candidate may put a thousand folders into each other, which Python goes down by calls
        subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


class Nursery:
    """A process that forks others on demand; see ``nursery``. One that was killed is replaced."""

    def __init__(self, folder: Path, more: Mapping[str, str]) -> None:
        self._folder, self._more, self._packages = folder, more, packages(folder)
        self.remains = Remains()
        self._spawn()

    def _spawn(self) -> None:
        self._control, there = Channel.pair()
        numbers = [str(there.fileno()), str(self._folder)]
        with contextlib.closing(there), open(self._folder / OUTPUT_FILE, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-B", "-W", "ignore", "-c", _BOOT, self._packages, *numbers],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(self._folder, {**self._more, **_UNTOUCHED}),
                pass_fds=(there.fileno(),),
                start_new_session=True,
            )

    def start(
        self,
        role: str,
        folder: Path,
        files: Sequence[int],
        more: Mapping[str, str] | None = None,
    ) -> Channel:
        """A process with its own folder; of the files the first is its channel and the second its output.

        Returns its lifeline.
        """
        if self._process.poll() is not None:
            self._control.close()
            self._spawn()
        lifeline, there = Channel.pair()
        message = {
            "role": role,
            "folder": str(folder),
            "environment": environment(folder, {**self._more, **(more or {})}),
        }
        try:
            self._control.send(files=[there.fileno(), *files], **message)
        except ChannelClosed as error:
            lifeline.close()
            raise MachineryFault(f"The process that starts all others is gone. {last_line(self._folder)}") from error
        finally:
            there.close()
        return lifeline

    async def close(self) -> None:
        """End it with everything it started; nothing of those it started before is left either."""
        await self.remains.gone()
        self._control.close()
        try:
            await asyncio.to_thread(self._process.wait, GONE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def let_go(lifeline: Channel) -> None:
    """End what hangs on the lifeline and wait until nothing of it is left."""
    lifeline.finish()
    with contextlib.suppress(ChannelClosed, MessageMalformed, TimeoutError), contextlib.closing(lifeline):
        while True:  # what it says last is how it ended; then it is gone
            lifeline.receive(GONE_S)


def last_line(folder: Path) -> str:
    """The last line printed by whom this folder belongs to: of an error, what it was."""
    with contextlib.suppress(MachineryFault):
        lines = read_plainly(folder / OUTPUT_FILE, LAST_BYTES).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""


class Ward:
    """A process of ours, seen from an event loop: what it says, and its folder, which goes with it."""

    def __init__(self, nursery: Nursery, role: str, folder: Path, more: Mapping[str, str] | None = None) -> None:
        self.folder, self._remains = folder, nursery.remains
        self._ending: asyncio.Task[None] | None = None
        self.channel, there = Channel.pair()
        with open(folder / OUTPUT_FILE, "wb") as output, contextlib.closing(there):
            try:
                self._lifeline = nursery.start(role, folder, [there.fileno(), output.fileno()], more)
            except MachineryFault:
                self.channel.close()
                raise

    async def says(self, *expected: str) -> dict[str, Any]:
        """Its next message, which has to be one of these; ``ChannelClosed`` when it is gone or says nonsense."""
        try:
            message = await self.channel.next()
        except MessageMalformed as error:
            raise ChannelClosed(str(error)) from error
        if message.get("did") not in expected:
            raise ChannelClosed(f"{message.get('did')!r} instead of {expected}")
        return message

    def last_words(self) -> str:
        """What it printed last, or what was last said by those who were to start it."""
        return last_line(self.folder) or last_line(self.folder.parent)

    async def end(self) -> None:
        """Leave nothing of it but its folder."""
        await asyncio.shield(self._end())

    async def close(self) -> None:
        """Leave nothing of it at all. Its folder goes soon, and at the latest with the nursery."""
        self._remains.remove(self.folder, self._end())
        await self.end()

    def _end(self) -> asyncio.Task[None]:
        if self._ending is None:
            self.channel.close()
            self._ending = self._remains.end(self._lifeline)
        return self._ending

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
