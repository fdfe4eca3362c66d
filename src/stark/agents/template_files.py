"""Loads, checks and renders the templates of prompts. Only this module imports jinja2.

A folder of ``templates`` holds the templates of one way to write prompts. A user may replace the system message and
each role's template. All templates of a folder get the same variables; those that do not apply to a role are empty.
Source code is a value, so its braces are not expanded.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stark.core.errors import SettingsError
from stark.core.settings import PromptSettings
from stark_worker.protocol.request import Target

PAPER, INFORMED = "paper", "informed"
WORDINGS = ("default", "alternative-1", "alternative-2")

VARIABLES: dict[str, str] = {
    "role": "who is asked: plan, code, debug or solo",
    "target": "the target: cuda, triton or cpu",
    "language": "the language of the kernels in words",
    "hardware": "the kind of device in words",
    "libraries": "vendor libraries, in words",
    "device": "facts about the device, each a text",
    "precision": "floating-point type of inputs and weights",
    "task_name": "the task's name",
    "task_source": "the task's source",
    "hint": "the user's advice; may be empty",
    "example_model": "the example's Model",
    "example_new": "the example's ModelNew",
    "latest_source": "source of the selected node; empty for the root",
    "failed": "whether the selected node failed",
    "entries": "the window: list of title, advice, source, source_place, log, result, profile",
    "anchors": "whether markers are asked for",
    "marked": "whether the scaffold is shown with its markers",
    "begin": "the marker that begins a region",
    "end": "the marker that ends a region",
    "advice": "the plan's advice; for debug, the failing attempt's",
    "scaffold": "the plan's marked source; empty if not grounded",
    "strategy": "a direction for the planner; may be empty",
    "reasons": "why an answer is sent back",
}


INFORMED_VARIABLES: dict[str, str] = {
    "role": "who is asked: plan, code or debug",
    "target": "the target: cuda, triton or cpu",
    "language": "the language of the kernels in words",
    "hardware": "the kind of device in words",
    "libraries": "vendor libraries, in words",
    "device": "facts about the device, each a text",
    "rules": "the rules of the judge, each a short text",
    "bound": "the least time of the task, in words; may be empty",
    "task_source": "the task's source",
    "hint": "the user's advice; may be empty",
    "base": "the attempt to build on: number, is_root, title, advice, explanation, log, profile, source, outline",
    "rows": "all attempts, one line each",
    "others": "other sources: list of title, text, language",
    "failures": "failed children of the base: list of title, text, language",
    "in_flight": "what is being tried from the same base, one line each",
    "direction": "the direction this attempt is asked to take",
    "rejected": "plans of this attempt that led to known code",
    "anchors": "whether regions are asked for",
    "marked": "whether the source is shown with its regions marked",
    "begin": "the marker that begins a region",
    "end": "the marker that ends a region",
    "advice": "the plan's advice",
    "reasons": "why an answer is sent back",
}

_FOLDERS = {
    PAPER: (("plan", "code", "debug", "solo", "send_back", "context", "window"), VARIABLES),
    INFORMED: (("plan", "code", "debug", "send_back", "facts"), INFORMED_VARIABLES),
}
_ROLE_KEYS = ("plan", "code", "debug", "solo")
_TEMPLATE_FOLDER = files("stark.agents") / "templates"


def load_templates(settings: PromptSettings, folder: str | None = None) -> dict[str, str]:
    """Load and check the effective templates and examples, everything a run must store to rebuild its prompts.

    Without a ``folder`` they are the paper's, in the wording of the settings.
    """
    folder = folder or settings.wording
    keys, variables = _FOLDERS[folder]
    templates = {key: _read_built_in(folder, f"{key.replace('_', '-')}.j2") for key in keys}
    if folder == PAPER:
        templates["example_model"] = _read_built_in(folder, "example-model.py")
        for target in Target:
            templates[f"example_{target}_new"] = _read_built_in(folder, f"example-{target}-new.py")
    origins: dict[str, str] = {}
    if settings.system in WORDINGS:
        templates["system"] = _read_system(folder, settings.system)
    else:
        origins["system"] = settings.system
    origins |= {key: path for key in _ROLE_KEYS if key in keys and (path := getattr(settings, key)) is not None}
    for key, path in origins.items():
        templates[key] = _read_user_file(key, path)
    environment = make_environment(templates)
    for key, path in origins.items():
        _check_template(environment, key, path, templates[key], variables)
    return templates


def _read_built_in(folder: str, name: str) -> str:
    return (_TEMPLATE_FOLDER / folder / name).read_text(encoding="utf-8")


def _read_system(folder: str, wording: str) -> str:
    if folder != PAPER and wording != WORDINGS[0]:
        raise SettingsError(
            f"prompts.system={wording} is a wording of the paper's methods.", "Give them with --method stark."
        )
    return _read_built_in(folder, f"system-{wording}.j2")


def _read_user_file(key: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        wordings = f" or one of {', '.join(WORDINGS)}" if key == "system" else ""
        raise SettingsError(
            f"prompts.{key} is {path!r}, which cannot be read as a file: {error}.",
            f"Give a readable template file{wordings}.",
        ) from error


def _check_template(
    environment: jinja2.Environment, key: str, path: str, text: str, variables: Mapping[str, str]
) -> None:
    """Refuse a template that can never be rendered, before a run begins."""
    where = f"prompts.{key}: {path}"
    try:
        tree = environment.parse(text)
        environment.compile(tree)
    except jinja2.TemplateSyntaxError as error:
        raise SettingsError(f"{where}, line {error.lineno}: {error.message}.", "Fix the template.") from error
    known = {*variables, *environment.globals}
    for name in sorted(meta.find_undeclared_variables(tree) - known):
        line = min((node.lineno for node in tree.find_all(nodes.Name) if node.name == name), default=1)
        near = difflib.get_close_matches(name, variables, n=1, cutoff=0)[0]
        raise SettingsError(
            f"{where}, line {line}: there is no variable {name!r}; the nearest is {near!r}.",
            f"Known variables: {', '.join(variables)}.",
        )
    known_templates = environment.list_templates()
    for other in meta.find_referenced_templates(tree):
        if other is not None and other not in known_templates:
            raise SettingsError(
                f"{where}: there is no template {other!r} to include.", f"Known: {', '.join(known_templates)}."
            )


def make_environment(templates: dict[str, str]) -> jinja2.Environment:
    return _cached_environment(frozenset(templates.items()))


@lru_cache(maxsize=8)
def _cached_environment(templates: frozenset[tuple[str, str]]) -> jinja2.Environment:
    """Share one environment between the runs of a grid: compiling templates is far slower than filling them."""
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.DictLoader({f"{key}.j2": text for key, text in templates}),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["fenced"] = _fence_block
    return environment


def render(environment: jinja2.Environment, key: str, values: Mapping[str, Any]) -> str:
    """Render one template."""
    try:
        return environment.get_template(f"{key}.j2").render(values).strip() + "\n"
    except jinja2.TemplateError as error:
        raise SettingsError(f"The template prompts.{key} cannot be rendered: {error}.", "Fix the template.") from error


def _fence_block(text: str, language: str = "python") -> str:
    """Fence the text with more backticks than any run of them inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
