"""Handles of processes that a fork server starts. No torch.

A process lives as long as its lifeline is open. Closing the lifeline ends the process and all that it started. If the
holder of the lifeline dies, the system closes it.
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
from stark_worker.processes.environment import child_environment, import_root
from stark_worker.processes.process_tree import KILL_TIMEOUT_S
from stark_worker.processes.workdir import OUTPUT_FILE, read_regular_file
from stark_worker.protocol.errors import MachineryFault

LAST_BYTES = 2_000
EXIT_TIMEOUT_S = 2 * KILL_TIMEOUT_S

# Importing torch's builder of extensions queries the GPU, and processes forked after that can never use it. So the fork
# server sees no GPU and counts them without starting the driver. Its libraries start no threads.
_NO_GPU_NO_THREADS = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "OPENBLAS_NUM_THREADS": "1"}
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from stark_worker.processes.fork_server import main; "
    "main(int(sys.argv[2]), sys.argv[3])"
)


class ProcessReaper:
    """Ends processes and removes their folders, in threads.

    Neither the event loop nor a verdict waits for the removal of all that a candidate wrote.
    """

    def __init__(self) -> None:
        self._tasks = set[asyncio.Task[None]]()

    def end(self, lifeline: Channel) -> asyncio.Task[None]:
        """Start to end a process. The task is done when the whole tree is gone."""
        return self._start(asyncio.to_thread(end_process, lifeline))

    def remove(self, folder: Path, ending: asyncio.Task[None]) -> None:
        """Remove the folder of a process once the process has ended."""
        self._start(_remove_after(folder, ending))

    async def wait(self) -> None:
        """Wait until all processes have ended and all folders are removed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _remove_after(folder: Path, ending: asyncio.Task[None]) -> None:
    await asyncio.wait([ending])
    await asyncio.to_thread(_remove, folder)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # a candidate may nest a thousand folders, and Python removes them recursively
        subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


class ForkServer:
    """The host's end of a fork server process (``fork_server.py``). A server that was killed is replaced."""

    def __init__(self, folder: Path, more: Mapping[str, str]) -> None:
        self._folder, self._more, self._import_root = folder, more, import_root(folder)
        self.reaper = ProcessReaper()
        self._spawn()

    def _spawn(self) -> None:
        self._control, there = Channel.pair()
        arguments = [str(there.fileno()), str(self._folder)]
        with contextlib.closing(there), open(self._folder / OUTPUT_FILE, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-B", "-W", "ignore", "-c", _BOOT, self._import_root, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=child_environment(self._folder, {**self._more, **_NO_GPU_NO_THREADS}),
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
        """Start a process in its own folder and return its lifeline.

        The first of the files is the channel of the process, the second its output.
        """
        if self._process.poll() is not None:
            self._control.close()
            self._spawn()
        lifeline, there = Channel.pair()
        message = {
            "role": role,
            "folder": str(folder),
            "environment": child_environment(folder, {**self._more, **(more or {})}),
        }
        try:
            self._control.send(files=[there.fileno(), *files], **message)
        except ChannelClosed as error:
            lifeline.close()
            raise MachineryFault(f"The fork server is gone. {last_line(self._folder)}") from error
        finally:
            there.close()
        return lifeline

    async def close(self) -> None:
        """End the fork server and everything it started."""
        await self.reaper.wait()
        self._control.close()
        try:
            await asyncio.to_thread(self._process.wait, EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def end_process(lifeline: Channel) -> None:
    """End the process of this lifeline and wait until its whole tree is gone."""
    lifeline.stop_sending()
    with contextlib.suppress(ChannelClosed, MessageMalformed, TimeoutError), contextlib.closing(lifeline):
        while True:  # the supervisor sends the exit code and closes the channel
            lifeline.receive(EXIT_TIMEOUT_S)


def last_line(folder: Path) -> str:
    """Return the last line that the process of this folder printed: the error, if one ended it."""
    with contextlib.suppress(MachineryFault):
        lines = read_regular_file(folder / OUTPUT_FILE, LAST_BYTES).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""


class ProcessHandle:
    """A running process with its channel and its folder, for use in an event loop."""

    def __init__(self, fork_server: ForkServer, role: str, folder: Path, more: Mapping[str, str] | None = None) -> None:
        self.folder, self._reaper = folder, fork_server.reaper
        self._ending: asyncio.Task[None] | None = None
        self.channel, there = Channel.pair()
        with open(folder / OUTPUT_FILE, "wb") as output, contextlib.closing(there):
            try:
                self._lifeline = fork_server.start(role, folder, [there.fileno(), output.fileno()], more)
            except MachineryFault:
                self.channel.close()
                raise

    async def expect(self, *expected: str) -> dict[str, Any]:
        """Return the next message, which must be of one of these kinds. Raise ChannelClosed otherwise."""
        try:
            message = await self.channel.next_message()
        except MessageMalformed as error:
            raise ChannelClosed(str(error)) from error
        if message.get("did") not in expected:
            raise ChannelClosed(f"{message.get('did')!r} instead of {expected}")
        return message

    def last_output(self) -> str:
        """Return the last line that the process printed, or else the last line of its fork server."""
        return last_line(self.folder) or last_line(self.folder.parent)

    async def end(self) -> None:
        """End the process and all that it started. Its folder stays."""
        await asyncio.shield(self._end())

    async def close(self) -> None:
        """End the process and schedule the removal of its folder."""
        self._reaper.remove(self.folder, self._end())
        await self.end()

    def _end(self) -> asyncio.Task[None]:
        if self._ending is None:
            self.channel.close()
            self._ending = self._reaper.end(self._lifeline)
        return self._ending

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
