"""The door to the worker's capture. It runs in the user's process, which has torch; nothing here imports it early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stark.core.errors import TaskError, UsageError
from stark.core.task import Task

HOW_TO_CALL = (
    "Give the module and its inputs: stark.optimize(module, inputs), where a tuple is positional, a dict named."
)


@dataclass(frozen=True)
class Live:
    """A live module and the task that was made of it. ``captured`` belongs to the worker."""

    module: Any
    captured: Any
    task: Task

    @property
    def precision(self) -> str:
        """The type of the module's weights."""
        return str(self.captured.precision)


def capture(module: Any, inputs: Any, hint: str = "", name: str = "") -> Live:
    """Make the task of a live module; raise a TaskError that names the line at fault if that is not possible."""
    from stark_worker.capture.capture import capture_module
    from stark_worker.capture.faults import CaptureFault

    if inputs is None:
        raise UsageError("A module needs example inputs.", HOW_TO_CALL)
    args, kwargs = split_inputs(inputs)
    try:
        captured = capture_module(module, args, kwargs)
    except CaptureFault as fault:
        raise TaskError(
            f"The module cannot be captured: {fault}", "Change that place, or write a task file."
        ) from fault
    return Live(module, captured, Task(name or captured.name, captured.source, hint))


def split_inputs(inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and named arguments: a dict is named, a tuple or list positional, all else one argument.

    A pair of a tuple and a dict is both.
    """
    if type(inputs) is tuple and [*map(type, inputs)] == [tuple, dict]:
        return list(inputs[0]), inputs[1]
    if isinstance(inputs, Mapping):
        return [], dict(inputs)
    return (list(inputs), {}) if type(inputs) in (tuple, list) else ([inputs], {})


def put_back(source: str, live: Live) -> Any:
    """Return a module that takes the live module's place."""
    from stark_worker.capture.put_back import Replacement

    return Replacement(source, live.captured, live.module)


def make_module(source: str, task: str) -> Any:
    """Return a model of a drop-in, for a task that was a file."""
    from stark_worker.capture.put_back import make_module

    return make_module(source, task)


def make_model(task: str) -> Any:
    """Return a task's own model."""
    from stark_worker.capture.put_back import make_model

    return make_model(task)


def save_module(module: Any, path: Path, sources: list[str]) -> None:
    """Write a module with its code to a file."""
    from stark_worker.capture.put_back import save_module

    save_module(module, path, sources)


def load_module(path: Path) -> Any:
    """Read a module that was saved."""
    from stark_worker.capture.put_back import load_module

    return load_module(path)
