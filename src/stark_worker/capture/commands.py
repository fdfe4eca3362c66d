"""The commands of the worker that capture. They run the user's own code, so they are processes of their own."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from stark_worker.capture.capture import Captured, capture_module
from stark_worker.capture.factory import find_block, make_inputs, make_module
from stark_worker.capture.rank import rank_blocks
from stark_worker.capture.task_file import flatten_task


def answer(options: argparse.Namespace) -> dict[str, Any]:
    """Return the answer to a command. The user's code may print; only the answer goes to standard output."""
    with contextlib.redirect_stdout(sys.stderr):
        if options.file:
            return {"source": flatten_task(Path(options.name))}
        model = make_module(options.name)
        args, kwargs = make_inputs(options.inputs)
        if options.rank:
            return rank_blocks(model, args, kwargs, options.best)
        if options.block:
            model, args, kwargs = find_block(model, options.block, args, kwargs)
        return describe(capture_module(model, args, kwargs))


def describe(captured: Captured) -> dict[str, Any]:
    return {"name": captured.name, "source": captured.source, "precision": captured.precision}
