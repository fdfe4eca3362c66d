"""A process beside the test, with a pipe to it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

PROCESSES = multiprocessing.get_context("spawn")


@contextmanager
def started(work: Callable[..., None], *arguments: object) -> Iterator[tuple[SpawnProcess, Connection]]:
    """A process that runs ``work(pipe, *arguments)``, and our end of the pipe."""
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=work, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        ours.close()
