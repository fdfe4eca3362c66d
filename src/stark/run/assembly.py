"""Assembling a run from its record: models, method, and the checks that belong to no single part."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stark.core.chat import Usage
from stark.core.errors import SettingsError, UsageError
from stark.core.interfaces import ChatModel, Evaluator, Listener, Store
from stark.core.records import RunRecord
from stark.core.settings import PromptSettings, RoleSettings, Settings
from stark.core.task import Task
from stark.core.tree import Role
from stark.models.limited import ProviderQueues
from stark.models.open import PLAYBOOK, is_provider, open_for_estimate, open_model
from stark.run.loop import DEFAULT_RULES, Run, RunRules
from stark.run.methods import BuiltMethod, build_policy, build_workflow, find_method, salt_of, templates_of
from stark.store.lookup import load_replies, settings_of
from stark_worker.protocol.report import DeviceFacts
from stark_worker.protocol.request import Precision

DTYPES = {Precision.FP32: "float32", Precision.BF16: "bfloat16", Precision.FP16: "float16"}
OpenModels = dict[RoleSettings, ChatModel]


Estimating = dict[tuple[Role, RoleSettings], ChatModel]


@dataclass(frozen=True)
class Job:
    """A run to start: checked as far as possible before anything is started."""

    task: Task
    settings: Settings
    folder: Path
    given: str | None = None
    templates: dict[str, str] = field(default_factory=dict)


def new_run_record(job: Job, device: DeviceFacts) -> RunRecord:
    """Return the record of a run that is about to begin."""
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
    rules: RunRules = DEFAULT_RULES,
    queues: ProviderQueues | None = None,
) -> Run:
    """Build a run from its stored settings. Many runs share the limits of providers in ``queues``."""
    settings = settings_of(record)
    built_in = settings.model_copy(update={"prompts": PromptSettings(wording=settings.prompts.wording)})
    templates = templates_of(built_in) | record.templates  # an older version may have stored fewer
    workflow = build_workflow(settings, templates, record.task, record.device)
    models = open_models(settings, store.count_calls(record.id), opened)
    queues = queues or ProviderQueues()
    models = {
        role: queues.limit(model, getattr(settings.roles, role), settings.limits, record.id)
        for role, model in models.items()
    }
    method = BuiltMethod(build_policy(settings), workflow, models, salt_of(settings, record.task))
    return Run(record, settings, store, method, evaluator, listener, rules)


# -- checks that belong to no single part ---------------------------------------------------------------------------


def open_models(
    settings: Settings, answered: Mapping[Role, int] | None = None, opened: OpenModels | None = None
) -> dict[Role, ChatModel]:
    """Open the chat model of every role of the method. Many runs share the connections to providers in ``opened``."""
    found = {}
    for role in find_method(settings.method).roles:
        wanted: RoleSettings = getattr(settings.roles, role)
        model = opened.get(wanted) if opened is not None else None
        found[role] = model or open_model(role, wanted, (answered or {}).get(role, 0), load_replies)
        if opened is not None and is_provider(wanted):
            opened[wanted] = found[role]
    return found


def models_to_estimate(settings: Settings, opened: Estimating | None = None) -> dict[Role, ChatModel]:
    """Open models only to count calls, without a key. They are never called, so many runs share those in ``opened``."""
    opened = {} if opened is None else opened
    found: dict[Role, ChatModel] = {}
    for role in find_method(settings.method).roles:
        wanted: RoleSettings = getattr(settings.roles, role)
        if (role, wanted) not in opened:
            opened[role, wanted] = open_for_estimate(role, wanted, load_replies)
        found[role] = opened[role, wanted]
    return found


def check_prices(settings: Settings, models: Mapping[Role, ChatModel]) -> None:
    """Refuse a model without a known price unless its tokens are limited."""
    for role, model in models.items():
        if model.cost_usd(Usage(1, 1)) is None and settings.budget.tokens is None:
            raise SettingsError(
                f"The price of {model.name} ({role}) is not known, so a limit on money cannot hold.",
                "Limit its tokens instead, for example with --tokens 2000000.",
            )


def check_playbook(task: Task, settings: Settings) -> None:
    """Refuse a task that the playbook does not know, where it answers for a role."""
    names = {getattr(settings.roles, role).model for role in find_method(settings.method).roles}
    if any(name.partition(":")[0] == PLAYBOOK for name in names):
        from stark.models.playbook.model import check_task

        check_task(task.source, settings.evaluation.target, DTYPES[settings.evaluation.precision])


def check_attempts(run_id: str, settings: Settings, begun: int) -> None:
    """Refuse a budget below the attempts already made."""
    if begun > settings.budget.attempts:
        raise UsageError(
            f"The run {run_id!r} already has {begun} attempts, more than --attempts {settings.budget.attempts}.",
            f"Give --attempts {begun} or more, or choose a new folder.",
        )


def check_device(stored: DeviceFacts, here: DeviceFacts) -> None:
    """Refuse to mix times of two machines, or of two versions of a compiler or library, in one tree."""
    if (stored.kind, stored.name, stored.cores) != (here.kind, here.name, here.cores):
        raise UsageError(
            f"This run was measured on {stored.name} ({stored.cores} cores), this is {here.name} ({here.cores} cores).",
            "Resume it on the machine where it began, or start a new run here with --from its best kernel.",
        )
    both = {name: (then, here.tools.get(name, then)) for name, then in stored.tools.items()}
    if other := [f"{name} {then}, here it is {now}" for name, (then, now) in both.items() if then != now]:
        raise UsageError(
            f"The stored run was measured with {'; '.join(other)}.",
            "Resume it with those versions, or start a new run in another folder.",
        )


@cache
def versions() -> dict[str, str]:
    """Return the versions that the host's part of a result depends on; the device facts hold the worker's."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("stark-kernels", "langgraph", "pydantic-ai-slim"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
