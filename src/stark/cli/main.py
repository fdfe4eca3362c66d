"""The command line: reads what the user typed, calls the API, shows the result. Nothing else happens here.

Exit codes: 0 a faster kernel was found (or the command did what it says), 1 a fault of STARK itself (of doctor:
something is missing), 2 usage or bad input (of bench: not one task that works and tests anything), 3 the run ended
without a faster kernel (of judge: it is wrong; of verify: the claim does not hold), 4 it cannot be told whether a claim
holds, 5 the chat model's side, 6 the evaluating machine, 7 the run folder, 130 stopped by Ctrl-C or SIGTERM; the run
can be resumed.
"""

from __future__ import annotations

import io
import logging
import sys

import typer

from stark.cli import bench, doctor, judge, optimize, report, show, tools, verify
from stark.cli.options import (
    INTERRUPTED,
)
from stark.cli.terminal import screen
from stark.core.errors import StarkError

app = typer.Typer(
    help="Makes a PyTorch model faster with custom kernels that are checked and timed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog=(__doc__ or "").partition("\n\n")[2],
)


for room in (optimize, judge, tools, show, bench, report, verify, doctor):
    for command in room.COMMANDS:
        app.command()(command)


def main() -> None:
    """Run the command line; every foreseen failure ends in a sentence and a documented exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may write what a terminal cannot show
    try:
        app()
    except StarkError as error:
        screen.show_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # pressed before a run began, or once more when it had ended
        sys.exit(INTERRUPTED)
