"""The steps of an evaluation, from the evaluator to the listener of the task that waits for it.

A context variable carries the listener, so an evaluator that knows no steps needs no parameter for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from stark.core.steps import Step

_listener: ContextVar[Callable[[Step], None] | None] = ContextVar("listener of steps", default=None)


def report_step(step: Step) -> None:
    """Tell the listener of this task that its evaluation has reached a step."""
    if (listener := _listener.get()) is not None:
        listener(step)


@contextmanager
def listening(listener: Callable[[Step], None]) -> Iterator[None]:
    """Let the listener hear the steps of evaluations within this block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
