"""How work is waited for: Ctrl-C that lets it land, and a way in from where a loop is running already."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

Value = TypeVar("Value")


class Stoppable(Protocol):
    """What Ctrl-C stops: a run, or a whole benchmark."""

    @property
    def begun(self) -> bool:
        """Whether there is something to keep."""

    def stop(self) -> None:
        """Begin nothing further; what is in flight lands."""


@contextmanager
def interruptible(signals: bool) -> Iterator[list[Stoppable]]:
    """The first Ctrl-C or SIGTERM lets the attempts in flight land, the second does not. Before there is a run with a
    node, the first one ends everything. The run is put into the list once there is one."""
    running: list[Stoppable] = []
    if not signals:
        yield running
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    presses = itertools.count()

    def interrupted() -> None:
        if next(presses) or not running or not running[0].begun:
            task.cancel()
        for run in running:
            run.stop()

    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, interrupted)
    try:
        yield running
    finally:
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(name)


def run_sync(work: Coroutine[Any, Any, Value]) -> Value:
    """Wait for a coroutine, also where a loop is running already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Value]]] = Future()

    async def announced() -> Value:
        task = asyncio.ensure_future(work)
        begun.set_result((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="stark") as thread:
        outcome = thread.submit(asyncio.run, announced())
        try:
            return outcome.result()
        except KeyboardInterrupt:  # a notebook's stop button: without this, leaving would wait for the whole run
            loop, task = begun.result()
            loop.call_soon_threadsafe(task.cancel)
            raise
