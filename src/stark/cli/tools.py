"""The commands ``stark capture``, ``stark pack-worker``, ``stark config``, ``stark graph`` and ``stark doctor``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from stark.cli.exit_codes import ExitCode
from stark.cli.options import (
    AllowWeakSandbox,
    ApiKeyEnv,
    Assignments,
    BaseUrl,
    EvaluatorName,
    MethodName,
    ModelName,
    SettingsFile,
    TargetName,
    drop_unset,
    evaluation_options,
)
from stark.cli.terminal import blocks, screen
from stark.cli.terminal.command import format_command
from stark.core.errors import UsageError
from stark_worker.protocol.request import Precision


def capture(
    name: Annotated[str, typer.Argument(metavar="PACKAGE.MODULE:FACTORY", help="Makes the module, or is one.")],
    inputs: Annotated[
        list[str],
        typer.Option(
            "--inputs", metavar="INPUT", help="2x128x768, ids=int64:2x128, or package.module:function; may be repeated."
        ),
    ],
    block: Annotated[str | None, typer.Option("--block", metavar="NAME", help="Capture this block of it.")] = None,
    rank: Annotated[bool, typer.Option("--rank", help="List the blocks by what a faster one would bring.")] = False,
    best: Annotated[int, typer.Option("--best", help="With --rank: write the tasks of this many blocks.")] = 3,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="PATH", help="The task file, or with --rank the folder, to write."),
    ] = None,
) -> None:
    """Make the task of a module in a package, or find the blocks of a model that are worth it."""
    from stark.capture.files import capture_by_name, rank_by_name

    if rank:
        ranking = rank_by_name(name, inputs, best)
        blocks.show_ranking(ranking)
        for task in ranking["tasks"]:
            _write_task((output or Path()) / task["file"], task["source"], task["precision"])
        return
    captured = capture_by_name(name, inputs, block)
    _write_task(output or Path(f"{captured.task.name}.py"), captured.task.source, captured.precision)


def _write_task(path: Path, source: str, precision: str) -> None:
    """Write a task that was captured, and say how it is optimised."""
    from stark.report import exports

    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != source:
        raise UsageError(f"{path} is there already.", "Name another file with --output, or delete it.")
    exports.make_folder(path.parent)
    exports.write_text(path, source)
    more = [] if precision == Precision.FP32 else ["--precision", precision]
    screen.show_line(f"{path} is the task. To make it faster, type: {format_command('optimize', path, *more)}")


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


def doctor(
    target: TargetName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    evaluator: EvaluatorName = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder of runs.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    config: SettingsFile = None,
    sets: Assignments = None,
) -> None:
    """Try everything that a run needs, and name fixes. Exit code 0: a run can work, 1: it cannot."""
    from stark.cli.terminal.doctor import Examination
    from stark.doctor.examination import examine
    from stark.run.settings_loader import load_settings
    from stark_worker.protocol.findings import Finding, can_work

    options = {
        **evaluation_options(None, None, target, evaluator, allow_weak_sandbox),
        "roles": {"model": model, "base_url": base_url, "api_key_env": api_key_env},
    }
    settings = load_settings(config, sets or [], drop_unset(options))

    async def show_findings() -> list[Finding]:
        with Examination(as_json) as examination:
            return [examination.add(finding) async for finding in examine(settings, runs, examination.begin)]

    found = asyncio.run(show_findings())
    if not can_work(found):
        raise typer.Exit(ExitCode.MISSING)
