"""Methods: a method is a policy and a workflow; the paper's five are a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stark.agents.prompts import PromptContext, Prompts, load_templates
from stark.agents.roles import Team
from stark.agents.workflows import WORKFLOWS, edges_of
from stark.core.interfaces import ChatModel, Policy, Workflow
from stark.core.plugins import find_class
from stark.core.settings import Roles, RoleSettings, Settings
from stark.core.task import Task
from stark.core.tree import Role
from stark.models.open import PLAYBOOK
from stark.search.policies import open_policy
from stark_worker.protocol.report import DeviceFacts


@dataclass(frozen=True)
class Method:
    """A way of searching. Settings that the user gives explicitly override it."""

    policy: str
    workflow: str
    windows: bool
    roles: tuple[Role, ...]


TEAM_ROLES = (Role.PLAN, Role.CODE, Role.DEBUG)

METHODS = {
    "stark": Method("epsilon-greedy", "team", windows=True, roles=TEAM_ROLES),
    "search-agent": Method("epsilon-greedy", "solo", windows=False, roles=(Role.SOLO,)),
    "ma-only": Method("root-or-repair", "team", windows=False, roles=TEAM_ROLES),
    "sampling": Method("always-root", "solo", windows=False, roles=(Role.SOLO,)),
    "reflexion": Method("last-attempt", "solo", windows=False, roles=(Role.SOLO,)),
}


@dataclass(frozen=True)
class BuiltMethod:
    """The parts of a method, built for one run."""

    policy: Policy
    workflow: Workflow
    models: Mapping[Role, ChatModel]


def find_method(name: str) -> Method:
    """Return the method of that name; a third party's is a ``Method`` too."""
    method: Method = find_class("method", name, METHODS)
    return method


def resolve(settings: Settings) -> Settings:
    """Return the settings with the defaults of the method and of all roles filled in."""
    method = find_method(settings.method)
    policy = settings.search.policy or method.policy
    windows = method.windows if settings.windows.enabled is None else settings.windows.enabled
    return settings.model_copy(
        update={
            "roles": _resolve_roles(settings.roles),
            "search": settings.search.model_copy(update={"policy": policy}),
            "windows": settings.windows.model_copy(update={"enabled": windows}),
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


def build_policy(settings: Settings) -> Policy:
    """Build the policy of resolved settings."""
    return open_policy(settings.search.policy or find_method(settings.method).policy, settings.search)


def build_workflow(settings: Settings, team: Team) -> Workflow:
    """Build the workflow of the settings' method."""
    workflow: Workflow = find_class("workflow", find_method(settings.method).workflow, WORKFLOWS)(team)
    return workflow


def workflow_edges(name: str) -> list[tuple[str, str, str]]:
    """Return the edges of a method's compiled graph for one attempt: from, to, condition."""
    settings = resolve(Settings(method=name))
    empty_context = PromptContext.of(Task("", ""), DeviceFacts("", ""), settings)
    workflow = build_workflow(settings, Team(Prompts(load_templates(settings.prompts), empty_context), settings))
    return edges_of(workflow)
