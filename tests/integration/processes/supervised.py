"""A process with its supervisor and the referee's side of both, without a fork server and a sandbox."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stark_worker.processes import fork_server
from stark_worker.processes.channel import Channel
from stark_worker.referee.candidate import Candidate

SLOTS, EXIT_CODE = 64, 7
Counters = memoryview  # one number per process or thread that counts as long as it runs


class Supervised(Candidate):
    """A candidate whose processes and threads count in memory that the test sees too."""

    counters: Counters

    def counted(self) -> list[int]:
        return list(self.counters)


@contextmanager
def supervised(work: Callable[[Counters], object], folder: Path) -> Iterator[Supervised]:
    """The referee's side of a process that does this work and then repeats every message, until one says "end"."""

    def role(channel: Channel, memory: int) -> None:
        work(_counters(memory))
        channel.send(did="ready")
        while (order := channel.receive()["do"]) != "end":
            channel.send(did=order)
        os._exit(EXIT_CODE)

    (here, there), (lifeline, far_lifeline), (output, print_to) = Channel.pair(), Channel.pair(), os.pipe()
    memory = os.memfd_create("counters")
    os.truncate(memory, 8 * SLOTS)
    supervisor = os.fork()
    if supervisor == 0:
        for end in (here, lifeline):
            end.close()
        sys.modules[__name__].role = role
        fork_server.ROLES["candidate"] = f"{__name__}:role"
        message = {"role": "candidate", "folder": str(folder), "environment": dict(os.environ)}
        files = [far_lifeline.fileno(), there.fileno(), print_to, os.dup(memory)]
        fork_server._run_and_exit(lambda: fork_server._supervise(message, files))
    os.close(print_to)
    candidate = Supervised([os.dup(here.fileno()), os.dup(lifeline.fileno()), output, memory], folder)
    candidate.counters = _counters(memory)
    for end in (here, there, lifeline, far_lifeline):
        end.close()
    try:
        candidate.await_start(gpu=False)
        candidate.expect("ready", 60.0)
        yield candidate
    finally:
        candidate.close()
        os.waitpid(supervisor, 0)


def _counters(memory: int) -> Counters:
    return memoryview(mmap.mmap(memory, 8 * SLOTS)).cast("Q")
