"""Methods: a method is a policy and a workflow. The table holds the default and the paper's five.

Settings need the table alone, so agents and policies are imported only when the parts of a method are built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stark.core.interfaces import ChatModel, Policy, Workflow
from stark.core.plugins import find_class
from stark.core.settings import Roles, RoleSettings, Settings
from stark.core.task import Task
from stark.core.tree import Role
from stark.models.open import PLAYBOOK
from stark_worker.protocol.report import DeviceFacts

if TYPE_CHECKING:
    from stark.agents.roles import Team


@dataclass(frozen=True)
class Method:
    """A way of searching. Settings that the user gives explicitly override it."""

    policy: str
    workflow: str
    windows: bool
    roles: tuple[Role, ...]
    observations: bool = True
    """Show what was observed of earlier attempts."""
    templates: str | None = None
    """The folder of its templates. None: the paper's, in the wording of the settings."""
    stops: bool = False
    """End a run of `stark optimize` at the bound, or on a plateau, unless the settings say otherwise."""
    profiles_all: bool = False
    """Profile every correct node, not leaders alone."""
    varies_by_task: bool = False
    """Draw other random numbers for every task."""


STOP_AT_BOUND = 0.95
STOP_AFTER = 3  # attempts without a gain

TEAM_ROLES = (Role.PLAN, Role.CODE, Role.DEBUG)

METHODS = {
    "informed": Method(
        "root-first",
        "informed",
        windows=True,
        roles=TEAM_ROLES,
        templates="informed",
        stops=True,
        profiles_all=True,
        varies_by_task=True,
    ),
    "stark": Method("epsilon-greedy", "team", windows=True, roles=TEAM_ROLES),
    "search-agent": Method("epsilon-greedy", "solo", windows=False, roles=(Role.SOLO,)),
    "ma-only": Method("root-or-repair", "team", windows=False, roles=TEAM_ROLES),
    "sampling": Method("always-root", "solo", windows=False, roles=(Role.SOLO,), observations=False),
    "reflexion": Method("last-attempt", "solo", windows=False, roles=(Role.SOLO,)),
}


@dataclass(frozen=True)
class BuiltMethod:
    """The parts of a method, built for one run."""

    policy: Policy
    workflow: Workflow
    models: Mapping[Role, ChatModel]
    salt: str = ""
    """Text that makes the random numbers of a run different from those of other tasks."""


def find_method(name: str) -> Method:
    """Return the method of that name; a third party's is a ``Method`` too."""
    method: Method = find_class("method", name, METHODS)
    return method


def resolve(settings: Settings) -> Settings:
    """Return the settings with the defaults of the method and of all roles filled in."""
    method = find_method(settings.method)
    policy = settings.search.policy or method.policy
    windows = {"enabled": method.windows, "observations": method.observations}
    windows = {name: value for name, value in windows.items() if getattr(settings.windows, name) is None}
    return settings.model_copy(
        update={
            "roles": _resolve_roles(settings.roles),
            "search": settings.search.model_copy(update={"policy": policy}),
            "windows": settings.windows.model_copy(update=windows),
        }
    )


def _resolve_roles(roles: Roles) -> Roles:
    resolved = {}
    each: dict[Role, RoleSettings] = {name: getattr(roles, name) for name in (*TEAM_ROLES, Role.SOLO)}
    configured = roles.base_url or any(role.model or role.base_url for role in each.values())
    shared = roles.model or ("" if configured else PLAYBOOK)
    for name, role in each.items():
        changes: dict[str, object] = {}
        if not role.model:
            changes = {
                "model": shared,
                "base_url": role.base_url or roles.base_url,
                "api_key_env": role.api_key_env or roles.api_key_env,
            }
        if roles.temperature is not None:
            changes["temperature"] = roles.temperature
        resolved[name.value] = role.model_copy(update=changes)
    return roles.model_copy(update=resolved)


def with_stops(settings: Settings) -> Settings:
    """Return settings in which a method that has stops uses them, unless they are set."""
    if not find_method(settings.method).stops:
        return settings
    defaults = {"stop_at_bound": STOP_AT_BOUND, "stop_after": STOP_AFTER}
    unset = {name: value for name, value in defaults.items() if getattr(settings.budget, name) is None}
    return settings.model_copy(update={"budget": settings.budget.model_copy(update=unset)})


def templates_of(settings: Settings) -> dict[str, str]:
    """Load the templates that a run with these settings stores."""
    from stark.agents.template_files import load_templates

    return load_templates(settings.prompts, find_method(settings.method).templates)


def salt_of(settings: Settings, task: Task) -> str:
    """Return the part of the seed that depends on the task; empty for a method that draws the same for all."""
    varies = find_method(settings.method).varies_by_task
    return hashlib.sha256(task.source.encode(errors="surrogatepass")).hexdigest()[:16] if varies else ""


def build_policy(settings: Settings) -> Policy:
    """Build the policy of resolved settings."""
    from stark.search.policies import open_policy

    return open_policy(settings.search.policy or find_method(settings.method).policy, settings.search)


def build_workflow(settings: Settings, templates: Mapping[str, str], task: Task, device: DeviceFacts) -> Workflow:
    """Build the workflow of the settings' method, with its prompts."""
    from stark.agents.workflows import WORKFLOWS

    workflow: Workflow = find_class("workflow", find_method(settings.method).workflow, WORKFLOWS)(
        make_team(settings, templates, task, device)
    )
    return workflow


def make_team(settings: Settings, templates: Mapping[str, str], task: Task, device: DeviceFacts) -> Team[Any]:
    """Return the prompts and settings that the agents of a run share."""
    from stark.agents.informed.prompts import InformedPrompts
    from stark.agents.prompts import PromptContext, Prompts
    from stark.agents.roles import Team
    from stark.agents.template_files import INFORMED

    context = PromptContext.of(task, device, settings)
    informed = find_method(settings.method).templates == INFORMED
    return Team(InformedPrompts(templates, context) if informed else Prompts(templates, context), settings)


def workflow_edges(name: str) -> list[tuple[str, str, str]]:
    """Return the edges of a method's compiled graph for one attempt: from, to, condition."""
    from stark.agents.workflows import edges_of

    settings = resolve(Settings(method=name))
    return edges_of(build_workflow(settings, templates_of(settings), Task("", ""), DeviceFacts("", "")))
