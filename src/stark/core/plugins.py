"""Implementations by name: a built-in name, a dotted path ``package.module:Class``, or an entry point."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from stark.core.errors import UsageError


def find_class(point: str, name: str, builtin: Mapping[str, Any]) -> Any:
    """Return the class (or factory) of that name at an extension point such as ``policy`` or ``evaluator``."""
    if name in builtin:
        return builtin[name]
    if entry := find_entry_points(point).get(name):
        return entry.load()
    if ":" in name:
        return _import(point, name)
    near = difflib.get_close_matches(name, builtin, n=1)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    raise UsageError(
        f"There is no {point} called {name!r}.{guess}",
        f"Known: {', '.join(sorted(builtin))}. Name a class of your own as package.module:Class.",
    )


@cache
def find_entry_points(point: str) -> dict[str, EntryPoint]:
    """Return what installed packages offer at an extension point. It looks once, because that reads all of them."""
    return {entry.name: entry for entry in reversed(entry_points(group=f"stark.{point}"))}  # the first of a name wins


def _import(point: str, path: str) -> Any:
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise UsageError(
            f"The {point} {path!r} cannot be loaded: {error}.",
            "Install its package, or check the spelling of package.module:Class.",
        ) from error
