"""TODO."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stark.cli.options import (
    Assignments,
    MethodName,
    SettingsFile,
    given,
)
from stark.cli.terminal import screen


def pack_worker(file: Annotated[Path, typer.Argument(metavar="FILE.pyz", help="The file to write.")]) -> None:
    """Make the worker one file, to be copied to a machine that has torch and run there with python."""
    from stark.report import exports

    exports.write_worker(file)
    screen.say(f"Copy {file} to the machine and run there: python {file.name} serve FOLDER --target cpu|cuda|triton")


def config(file: SettingsFile = None, sets: Assignments = None, method: MethodName = None) -> None:
    """Print the effective settings with their meaning."""
    from stark.run.config import explain, load_settings

    screen.show_settings(explain(load_settings(file, sets or [], given({"method": method}))))


def graph(
    method: Annotated[str, typer.Option(help="The method whose workflow is drawn.")] = "stark",
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE.svg", help="Write an SVG here.")] = None,
) -> None:
    """Draw one attempt as the compiled graph runs it: Mermaid on the terminal, or an SVG file."""
    from stark.report import exports, workflow_drawing
    from stark.run.methods import workflow_edges

    edges = workflow_edges(method)
    if output is None:
        screen.say(workflow_drawing.as_mermaid(edges))
        return
    exports.write_text(output, workflow_drawing.as_svg(edges))
    screen.say(f"The drawing is in {output}.")


COMMANDS = (pack_worker, config, graph)
