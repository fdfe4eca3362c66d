"""The words of the command line as keywords of the Python API: ``attempts=10`` is ``budget={"attempts": 10}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WORDS = {
    "attempts": ("budget", "attempts"),
    "tokens": ("budget", "tokens"),
    "usd": ("budget", "usd"),
    "minutes": ("budget", "wall_s"),
    "target": ("evaluation", "target"),
    "precision": ("evaluation", "precision"),
    "score": ("evaluation", "score"),
    "evaluator": ("evaluation", "evaluator"),
    "allow_weak_sandbox": ("evaluation", "allow_weak_sandbox"),
    "model": ("roles", "model"),
    "base_url": ("roles", "base_url"),
    "api_key_env": ("roles", "api_key_env"),
    "plan_model": ("roles", "plan", "model"),
    "code_model": ("roles", "code", "model"),
    "debug_model": ("roles", "debug", "model"),
}


def read_words(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return options as layers of settings; a word counts more than a group."""
    groups: dict[str, Any] = {name: value for name, value in options.items() if name not in WORDS}
    layers: list[dict[str, Any]] = [groups]
    for name, value in options.items():
        if name in WORDS and value is not None:
            nested: Any = value * 60 if name == "minutes" else value
            for part in reversed(WORDS[name]):
                nested = {part: nested}
            layers.append(nested)
    return layers
