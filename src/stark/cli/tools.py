"""The commands ``stark capture``, ``stark pack-worker``, ``stark config``, ``stark graph`` and ``stark mcp``."""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path
from typing import Annotated

import typer

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
    Usd,
    budget_options,
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


def mcp(
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP behind a token, instead of stdio.")] = False,
    host: Annotated[str, typer.Option(help="Address for --http.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port for --http.")] = 8765,
    root: Annotated[
        Path, typer.Option("--root", metavar="DIR", help="The clients' folder, unless they name roots (default: here).")
    ] = Path(),
    trust_tasks: Annotated[
        bool, typer.Option("--trust-tasks", help="Run tasks outside of the sandbox, as stark judge does.")
    ] = False,
    target: TargetName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    usd: Usd = None,
    evaluator: EvaluatorName = None,
    allow_weak_sandbox: AllowWeakSandbox = None,
    config: SettingsFile = None,
    sets: Assignments = None,
) -> None:
    """Serve the judge and the search as tools for other agents (Model Context Protocol)."""
    if importlib.util.find_spec("mcp") is None:
        raise UsageError("The protocol's SDK is not installed.", "Install it with: pip install 'stark-kernels[mcp]'")
    gc.disable()  # the SDK makes hundreds of classes that stay; looking through them takes a tenth of its import
    from stark.mcp.rules import ServerRules
    from stark.mcp.sdk.serving import serve_http, serve_stdio

    gc.enable()
    options = {
        **budget_options(None, None, usd, None),
        **evaluation_options(None, None, target, evaluator, allow_weak_sandbox),
        "roles": {"model": model, "base_url": base_url, "api_key_env": api_key_env},
    }
    folder = root.resolve()
    if not folder.is_dir():
        raise UsageError(f"There is no folder {root}.", "Name a folder with --root DIR.")
    rules = ServerRules.load(config, sets or [], drop_unset(options), trust_tasks)
    if http:
        serve_http(rules, folder, host, port)
    else:
        serve_stdio(rules, folder)


COMMANDS = (capture, pack_worker, config, graph, mcp)
