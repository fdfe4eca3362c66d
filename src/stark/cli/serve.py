"""The command ``stark mcp``. A client waits for its start, so it imports nothing that it does not need."""

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
    ModelName,
    SettingsFile,
    TargetName,
    Usd,
    budget_options,
    drop_unset,
    evaluation_options,
)
from stark.core.errors import UsageError


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
