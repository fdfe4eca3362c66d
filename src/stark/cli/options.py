"""The options that several commands share, and their translation into settings."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from stark.core.errors import UsageError
from stark_worker.protocol.request import Precision, Score, Target


class Bar(enum.StrEnum):
    """The time that a kernel has to beat."""

    EAGER = "eager"
    COMPILED = "torch.compile"


BarName = Annotated[Bar, typer.Option("--beat", help="What the kernel must be faster than, for exit code 0.")]
TaskFile = Annotated[
    Path, typer.Argument(metavar="TASK.py", help="File with Model, get_inputs() and get_init_inputs().")
]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")]
RunName = Annotated[
    str | None, typer.Option("--run", metavar="NAME", help="A run of a benchmark: its name, or a part of it.")
]
SettingsFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings file in TOML; see configs/.")
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Set any setting; may be repeated.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Set a setting of budget or roles, or jobs; may be repeated."),
]
MethodName = Annotated[
    str | None,
    typer.Option("--method", help="informed (default), stark, search-agent, ma-only, sampling or reflexion."),
]
ModelName = Annotated[str | None, typer.Option("--model", help="Chat model of all roles, such as openai:gpt-5.")]
BaseUrl = Annotated[str | None, typer.Option("--base-url", help="Address of an OpenAI-compatible server.")]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(
        "--api-key-env", metavar="NAME", help="Environment variable that holds the key, if not the usual one."
    ),
]
PrecisionName = Annotated[
    Precision | None, typer.Option("--precision", help="Type of inputs and weights (default: fp32).")
]
ScoreName = Annotated[Score | None, typer.Option("--score", help="Rules that decide (default: verified).")]
TargetName = Annotated[Target | None, typer.Option("--target", help="Kernel language (default: cpu).")]
EvaluatorName = Annotated[
    str | None,
    typer.Option("--evaluator", help="local, folder, ray, replay, or package.module:Class (default: local)."),
]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray-address", metavar="auto|ADDRESS", help="Evaluate on this Ray cluster; see docs/scale.md."),
]
DeviceKind = Annotated[
    str | None, typer.Option("--device-kind", help="Devices of a mixed cluster to measure on: a part of their name.")
]
AllowWeakSandbox = Annotated[
    bool | None,
    typer.Option("--allow-weak-sandbox", help="Run kernels even if the sandbox is only weak; see stark doctor."),
]
Attempts = Annotated[int | None, typer.Option("--attempts", help="Attempts in total.")]
Tokens = Annotated[int | None, typer.Option("--tokens", help="Limit on tokens.")]
Usd = Annotated[float | None, typer.Option("--usd", help="Limit on US dollars.")]
Minutes = Annotated[float | None, typer.Option("--minutes", help="Limit on search time; the final check comes on top.")]
Plain = Annotated[bool, typer.Option("--plain", help="Print plain lines instead of the live view.")]
StopAtBound = Annotated[
    float | None,
    typer.Option("--stop-at-bound", help="Stop at this share of the bound; 0: never (default: 0.95 if informed)."),
]
StopAfter = Annotated[
    int | None,
    typer.Option("--stop-after", help="Stop after so many attempts without a gain; 0: never (default: 3 if informed)."),
]
Jobs = Annotated[int | None, typer.Option("--jobs", help="Attempts in parallel.")]


def renamed_option(old: str, new: str) -> Any:
    """Return a hidden option that refuses an old name and states the new one."""

    def refuse(value: str | None) -> None:
        if value is not None:
            raise UsageError(f"The option {old} is now called {new}.", f"Give {new} {value}.")

    return typer.Option(old, hidden=True, callback=refuse)


def budget_options(
    attempts: int | None,
    tokens: int | None,
    usd: float | None,
    minutes: float | None,
    stop_at_bound: float | None = None,
    stop_after: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the limits of a run as settings."""
    wall_s = None if minutes is None else minutes * 60
    stops = {"stop_at_bound": stop_at_bound, "stop_after": stop_after}
    return {"budget": {"attempts": attempts, "tokens": tokens, "usd": usd, "wall_s": wall_s, **stops}}


def evaluation_options(
    precision: Precision | None,
    score: Score | None,
    target: Target | None,
    evaluator: str | None,
    allow_weak_sandbox: bool | None,
    ray_address: str | None = None,
    device_kind: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the rules of the evaluation as settings. The address of a cluster is enough to use it."""
    if ray_address is not None and evaluator not in (None, "ray"):
        raise UsageError(f"--ray-address cannot be combined with --evaluator {evaluator}.", "Leave one of them out.")
    options: dict[str, Any] = {"precision": precision, "score": score, "target": target}
    options |= {"evaluator": "ray" if ray_address is not None else evaluator, "ray_address": ray_address}
    return {"evaluation": {**options, "device_kind": device_kind, "allow_weak_sandbox": allow_weak_sandbox}}


def drop_unset(options: dict[str, Any]) -> dict[str, Any]:
    """Return only the options that the user gave."""
    nested = {name: drop_unset(value) if isinstance(value, dict) else value for name, value in options.items()}
    return {name: value for name, value in nested.items() if value is not None and value != {}}
