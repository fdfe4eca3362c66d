"""The options that several commands share, and how those that were given become settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stark_worker.protocol.request import Precision, Score, Target

INTERRUPTED = 130  # the exit code of what Ctrl-C or SIGTERM has stopped

TaskFile = Annotated[
    Path, typer.Argument(metavar="TASK.py", help="File with Model, get_inputs() and get_init_inputs().")
]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")]
RunName = Annotated[
    str | None, typer.Option("--run", metavar="NAME", help="Which run of a benchmark: its name, or a part of it.")
]
SettingsFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings in TOML; see configs/.")]
Assignments = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Any setting; may be repeated.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="A setting of budget or roles, or jobs; may be repeated."),
]
MethodName = Annotated[str | None, typer.Option("--method", help="stark, search-agent, ma-only, sampling, reflexion.")]
ModelName = Annotated[str | None, typer.Option("--model", help="Chat model of all roles, such as openai:gpt-5.")]
BaseUrl = Annotated[str | None, typer.Option("--base-url", help="Address of an OpenAI-compatible server.")]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option("--api-key-env", metavar="NAME", help="Variable that holds the key, where it is not the usual one."),
]
PrecisionName = Annotated[Precision | None, typer.Option("--precision", help="Type of inputs and weights.")]
ScoreName = Annotated[Score | None, typer.Option("--score", help="Which rules decide.")]
TargetName = Annotated[
    Target | None, typer.Option("--target", help="Language of the kernels; cpu where nothing is said.")
]
EvaluatorName = Annotated[
    str | None, typer.Option("--evaluator", help="local, folder, replay, or package.module:Class.")
]
AllowWeakSandbox = Annotated[
    bool | None,
    typer.Option(
        "--allow-weak-sandbox", help="Run kernels also where they cannot be locked in well; see stark doctor."
    ),
]
Attempts = Annotated[int | None, typer.Option("--attempts", help="How many attempts in all.")]
Tokens = Annotated[int | None, typer.Option("--tokens", help="Most tokens to spend.")]
Usd = Annotated[float | None, typer.Option("--usd", help="Most US dollars to spend.")]
Minutes = Annotated[float | None, typer.Option("--minutes", help="Longest time to search; the final comes on top.")]
Jobs = Annotated[int | None, typer.Option("--jobs", help="How many attempts are in flight at once.")]


def limits(
    attempts: int | None, tokens: int | None, usd: float | None, minutes: float | None
) -> dict[str, dict[str, Any]]:
    """The limits of a run as settings."""
    wall_s = None if minutes is None else minutes * 60
    return {"budget": {"attempts": attempts, "tokens": tokens, "usd": usd, "wall_s": wall_s}}


def judging(
    precision: Precision | None,
    score: Score | None,
    target: Target | None,
    evaluator: str | None,
    allow_weak_sandbox: bool | None,
) -> dict[str, dict[str, Any]]:
    """How candidates are judged, as settings."""
    asked = {"precision": precision, "score": score, "target": target, "evaluator": evaluator}
    return {"evaluation": {**asked, "allow_weak_sandbox": allow_weak_sandbox}}


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were really given."""
    nested = {name: given(value) if isinstance(value, dict) else value for name, value in options.items()}
    return {name: value for name, value in nested.items() if value is not None and value != {}}
