"""Waiting for work: Ctrl-C lets attempts land, and ``run_sync`` works inside a running loop."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import signal
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

Value = TypeVar("Value")


class Stoppable(Protocol):
    """A run or a benchmark that Ctrl-C stops."""

    @property
    def has_begun(self) -> bool:
        """True if there is something to keep."""

    def stop(self) -> None:
        """Begin nothing further; attempts in flight land."""


@contextmanager
def interruptible(signals: bool) -> Iterator[list[Stoppable]]:
    """Let attempts in flight land at the first Ctrl-C or SIGTERM; cancel them at the second.

    Before the run has a node, the first one ends everything. The caller appends the run to the list.
    """
    running: list[Stoppable] = []
    if not signals:
        yield running
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    presses = itertools.count()

    def on_signal() -> None:
        if next(presses) or not running or not running[0].has_begun:
            task.cancel()
        for run in running:
            run.stop()

    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, on_signal)
    try:
        yield running
    finally:
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(name)


def run_sync(work: Coroutine[Any, Any, Value]) -> Value:
    """Wait for a coroutine, also inside a running loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Value]]] = Future()

    async def start() -> Value:
        task = asyncio.ensure_future(work)
        started.set_result((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="stark") as thread:
        outcome = thread.submit(contextvars.copy_context().run, asyncio.run, start())  # a cell's output stays its own
        try:
            return outcome.result()
        except KeyboardInterrupt:  # a notebook's stop button: without this, leaving the block waits for the whole run
            loop, task = started.result()
            loop.call_soon_threadsafe(task.cancel)
            raise
