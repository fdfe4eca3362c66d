"""TODO."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stark.agents.prompts import Prompts, Scene, load_templates
from stark.agents.roles import Team
from stark.core.chat import Usage
from stark.core.errors import SettingsError, UsageError
from stark.core.interfaces import ChatModel, Evaluator, Listener, Store
from stark.core.records import RunRecord
from stark.core.settings import PromptSettings, RoleSettings, Settings
from stark.core.task import Task
from stark.core.tree import Role
from stark.models.open import is_provider, open_model, open_to_estimate
from stark.run.loop import Run
from stark.run.methods import build_policy, build_workflow, find_method
from stark.store.lookup import settings_of, stored_replies
from stark_worker.protocol.report import DeviceFacts

OpenModels = dict[RoleSettings, ChatModel]


Estimating = dict[tuple[Role, RoleSettings], ChatModel]


@dataclass(frozen=True)
class Job:
    """What a user asked for, checked as far as that is possible before anything is started."""

    task: Task
    settings: Settings
    folder: Path
    given: str | None = None
    templates: dict[str, str] = field(default_factory=dict)


def unstarted(job: Job, device: DeviceFacts) -> RunRecord:
    """The record of a run that is about to begin."""
    return RunRecord(
        id=job.folder.resolve().name,
        created_at=datetime.now(UTC).isoformat(),
        task=job.task,
        given=job.given,
        settings=job.settings.model_dump(mode="json"),
        templates=job.templates,
        versions=versions(),
        device=device,
    )


def assemble(
    record: RunRecord,
    store: Store,
    evaluator: Evaluator,
    listener: Listener,
    opened: OpenModels | None = None,
    has_answered: Callable[[Role], bool] = lambda role: False,
) -> Run:
    """The parts of a run, chosen by its stored settings."""
    settings = settings_of(record)
    scene = Scene.of(record.task, record.device, settings)
    templates = load_templates(PromptSettings()) | record.templates  # an older version may have stored fewer
    workflow = build_workflow(settings, Team(Prompts(templates, scene), settings))
    answered = {role: usage.calls for role, usage in store.usage(record.id).items()}
    models = open_models(settings, answered, opened)
    return Run(record, settings, store, build_policy(settings), workflow, models, evaluator, listener, has_answered)


# -- checks that belong to no single part ---------------------------------------------------------------------------


def open_models(
    settings: Settings, answered: Mapping[Role, int] | None = None, opened: OpenModels | None = None
) -> dict[Role, ChatModel]:
    """The chat model of every role the method uses. Many runs share the connections to providers in ``opened``."""
    found = {}
    for role in find_method(settings.method).roles:
        wanted: RoleSettings = getattr(settings.roles, role)
        model = opened.get(wanted) if opened is not None else None
        found[role] = model or open_model(role, wanted, (answered or {}).get(role, 0), stored_replies)
        if opened is not None and is_provider(wanted):
            opened[wanted] = found[role]
    return found


def models_to_estimate(settings: Settings, opened: Estimating | None = None) -> dict[Role, ChatModel]:
    """The same for counting alone, which takes neither a key nor a name. As nobody is asked, many runs share any model
    in ``opened``."""
    opened = {} if opened is None else opened
    found: dict[Role, ChatModel] = {}
    for role in find_method(settings.method).roles:
        wanted: RoleSettings = getattr(settings.roles, role)
        if (role, wanted) not in opened:
            opened[role, wanted] = open_to_estimate(role, wanted, stored_replies)
        found[role] = opened[role, wanted]
    return found


def check_prices(settings: Settings, models: Mapping[Role, ChatModel]) -> None:
    """A limit on money means nothing for a model whose price nobody knows."""
    for role, model in models.items():
        if model.cost_usd(Usage(1, 1)) is None and settings.budget.tokens is None:
            raise SettingsError(
                f"The price of {model.name} ({role}) is not known, so a limit on money cannot hold.",
                "Limit its tokens instead, for example with --tokens 2000000.",
            )


def check_attempts(settings: Settings, begun: int) -> None:
    """A run of fewer attempts than it has is none: its best would be told as that of the fewer."""
    if begun > settings.budget.attempts:
        raise UsageError(
            f"The run has {begun} attempts: it cannot be one of {settings.budget.attempts} any more.",
            f"--attempts is how many it has in all: give at least {begun}, or leave it out.",
        )


def check_device(stored: DeviceFacts, here: DeviceFacts) -> None:
    """Times from two machines, or by two versions of what compiles and computes, do not belong into one tree."""
    if (stored.kind, stored.name, stored.cores) != (here.kind, here.name, here.cores):
        raise UsageError(
            f"This run was measured on {stored.name} ({stored.cores} cores), this is {here.name} ({here.cores} cores).",
            "Resume it where it began, or start a new run here with --from its best kernel.",
        )
    both = {name: (then, here.tools.get(name, then)) for name, then in stored.tools.items()}
    if other := [f"{name} {then}, here it is {now}" for name, (then, now) in both.items() if then != now]:
        raise UsageError(
            f"What is stored was measured with {'; '.join(other)}.",
            "Go on with the versions it began with, or begin anew in another folder.",
        )


def versions() -> dict[str, str]:
    """What the host part of a result depends on; the device facts hold the worker's side."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("stark-kernels", "langgraph", "pydantic-ai-slim"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
