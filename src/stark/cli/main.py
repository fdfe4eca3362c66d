"""The command line: registers the commands, and turns errors into a message and an exit code."""

from __future__ import annotations

import io
import logging
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from stark.cli import bench, doctor, judge, optimize, report, show, tools, verify
from stark.cli.exit_codes import ExitCode, format_exit_codes
from stark.cli.live import watch
from stark.cli.terminal import screen
from stark.cli.terminal.examples import format_examples
from stark.core.errors import StarkError

app = typer.Typer(
    help="Makes a PyTorch model faster with custom kernels that are checked and timed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog=format_exit_codes(),
)
PANELS = {
    "Search": optimize.COMMANDS,
    "Measure": (*judge.COMMANDS, *verify.COMMANDS),
    "Read results": (*show.COMMANDS, *watch.COMMANDS, *report.COMMANDS),
    "Benchmarks": bench.COMMANDS,
    "Tools": (*tools.COMMANDS, *doctor.COMMANDS),
}
for panel, commands in PANELS.items():
    for command in commands:
        name = command.__name__.replace("_", "-")
        app.command(name, rich_help_panel=panel, epilog=format_examples(name))(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        screen.show_line(f"stark {version('stark-kernels')}")
        raise typer.Exit


@app.callback()
def _stark(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. Every expected failure ends in a message and a documented exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may write characters that the terminal cannot show
    try:
        app()
    except StarkError as error:
        if "--json" in sys.argv:  # a program reads every ending
            screen.show_json({"error": error.message, "next_step": error.next_step, "exit_code": error.exit_code})
        else:
            screen.show_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # before a run began, or after it ended
        sys.exit(ExitCode.INTERRUPTED)
