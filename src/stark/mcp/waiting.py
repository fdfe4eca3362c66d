"""Waits for long work: shows signs of progress meanwhile, and ends the work with its call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import anyio

SIGN_EVERY_S = 5.0  # some clients end a call after 60 s without one

Value = TypeVar("Value")
Report = Callable[[float, str], Awaitable[None]]


class Activity:
    """The step that some work is at, in words."""

    def __init__(self, text: str) -> None:
        self.text = text

    def begin(self, text: str) -> None:
        """Name the step that begins."""
        self.text = text


async def wait_with_signs(
    work: Coroutine[Any, Any, Value], report: Report, activity: Activity, every_s: float = SIGN_EVERY_S
) -> Value:
    """Return the result of the work. Report the seconds so far at once and then every ``every_s``.

    The work is a task of its own, because the SDK cancels every await of a cancelled handler, also those that clean up.
    A cancelled call returns only after its work has ended.
    """
    task, began, shown = asyncio.ensure_future(work), time.monotonic(), 0.0
    try:
        while not task.done():
            shown = max(time.monotonic() - began, shown + 0.001)  # strictly increasing
            await report(round(shown, 3), f"{activity.text}, {shown:.0f} s")
            await asyncio.wait({task}, timeout=every_s)
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({task})
