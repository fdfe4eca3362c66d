"""The command line: registers the commands, and turns errors into a message and an exit code."""

from __future__ import annotations

import importlib
import io
import logging
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from stark.cli.exit_codes import ExitCode, format_exit_codes
from stark.cli.terminal.examples import format_examples
from stark.core.errors import StarkError

PANELS: dict[str, dict[str, tuple[str, ...]]] = {  # of the help: the modules with their commands
    "Search": {"optimize": ("optimize", "resume")},
    "Measure": {"judge": ("judge", "baseline", "bound"), "verify": ("verify",)},
    "Read results": {
        "show": ("show", "export", "salvage", "view"),
        "live.watch": ("watch", "runs"),
        "report": ("report", "compare"),
    },
    "Benchmarks": {"bench": ("bench",)},
    "Tools": {"tools": ("capture", "pack-worker", "config", "graph", "doctor"), "serve": ("mcp",)},
}


def load_app(wanted: str = "") -> typer.Typer:
    """Return the program with one command, or with all if there is none of that name.

    The modules of the other commands stay out, because clients wait for a server to start.
    """
    app = typer.Typer(
        help="Makes a PyTorch model faster with custom kernels that are checked and timed.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        epilog=format_exit_codes(),
    )
    app.callback()(_stark)
    found = [
        (panel, module, name)
        for panel, modules in PANELS.items()
        for module, names in modules.items()
        for name in names
    ]
    for panel, module, name in [each for each in found if each[2] == wanted] or found:
        command = getattr(importlib.import_module(f"stark.cli.{module}"), name.replace("-", "_"))
        app.command(name, rich_help_panel=panel, epilog=format_examples(name))(command)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stark {version('stark-kernels')}")
        raise typer.Exit


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
        load_app(*sys.argv[1:2])()
    except StarkError as error:
        from stark.cli.terminal import screen

        if "--json" in sys.argv:  # a program reads every ending
            screen.show_json({"error": error.message, "next_step": error.next_step, "exit_code": error.exit_code})
        else:
            screen.show_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # before a run began, or after it ended
        sys.exit(ExitCode.INTERRUPTED)
