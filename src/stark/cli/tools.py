"""The commands ``stark pack-worker``, ``stark config`` and ``stark graph``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stark.cli.options import Assignments, MethodName, SettingsFile, drop_unset
from stark.cli.terminal import screen


def pack_worker(file: Annotated[Path, typer.Argument(metavar="FILE.pyz", help="The file to write.")]) -> None:
    """Pack the worker into one file for another machine that has torch."""
    from stark.report import exports

    exports.write_worker(file)
    screen.show_line(
        f"Copy {file} to the machine and type there: python {file.name} serve FOLDER --target cpu|cuda|triton"
    )


def config(file: SettingsFile = None, sets: Assignments = None, method: MethodName = None) -> None:
    """Print every setting with its value and meaning."""
    from stark.run.settings_loader import explain, load_settings

    screen.show_settings(explain(load_settings(file, sets or [], drop_unset({"method": method}))))


def graph(
    method: Annotated[str, typer.Option(help="The method to draw.")] = "stark",
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE.svg", help="Write an SVG here.")] = None,
) -> None:
    """Draw the workflow of one attempt: Mermaid on the terminal, or an SVG file."""
    from stark.report import exports, workflow_drawing
    from stark.run.methods import workflow_edges

    edges = workflow_edges(method)
    if output is None:
        screen.show_line(workflow_drawing.format_mermaid(edges))
        return
    exports.write_text(output, workflow_drawing.format_svg(edges))
    screen.show_line(f"The drawing is in {output}.")


COMMANDS = (pack_worker, config, graph)
