"""Reading settings: a TOML file, then ``--set a.b=c``, then the options of the command line, then the switch of a
benchmark. The later wins."""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stark.core.errors import SettingsError
from stark.core.settings import NEW_VALUES, RENAMED, Group, Settings
from stark.run.methods import resolve

Tree = Mapping[str, Any]
PLACES = ("ray_address", "device_kind", "lanes", "worker_timeout_s")  # of the evaluation


def load_settings(
    file: Path | None = None, sets: Sequence[str] = (), options: Tree | None = None, switch: Sequence[str] = ()
) -> Settings:
    """Return the effective settings of a run, with the defaults of its method filled in."""
    layers = [read_file(file) if file else {}, *map(parse_assignment, sets), options or {}]
    layers.append(_resolve_switch(merge_layers([*map(parse_assignment, switch)])))
    return change_settings(Settings(), layers)


def change_settings(settings: Settings, layers: Sequence[Tree]) -> Settings:
    """Return settings with further layers laid over them."""
    for layer in layers:
        refuse_unknown(layer)
    data = merge_layers([settings.model_dump(mode="json"), *layers])
    try:
        return resolve(Settings.model_validate(data))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise SettingsError(
            f"The setting {key} cannot be {first['input']!r}: {first['msg'].lower()}.",
            f"Its meaning: {meaning(key)}" if key in known_keys() else "",
        ) from error


def _resolve_switch(switch: Tree) -> Tree:
    """Return a switch; if it names another model, without the address and key of the old one."""
    roles = switch.get("roles")
    if not isinstance(roles, Mapping) or "model" not in roles:
        return switch
    return {**switch, "roles": without_old_address(roles)}


def without_old_address(given: Tree) -> dict[str, Any]:
    """Return the settings of a role whose model is replaced: the old model's address and key are dropped."""
    return {"base_url": None, "api_key_env": None, **given}


def merge_layers(layers: Sequence[Tree]) -> dict[str, Any]:
    """Return layers laid over each other; the later wins."""
    return functools.reduce(_merge, layers, {})


def read_file(path: Path) -> dict[str, Any]:
    """Read a settings file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"The file {path} cannot be read: {error.strerror}.", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"The file {path} cannot be read: it is not UTF-8.", "Save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"The file {path} is not valid TOML: {error}.", "Fix that line.") from error


def without_places(settings: Tree) -> dict[str, Any]:
    """Return settings without those that say where to evaluate: they change no result."""
    evaluation = {name: value for name, value in settings["evaluation"].items() if name not in PLACES}
    return {**settings, "evaluation": evaluation}


def parse_assignment(text: str) -> dict[str, Any]:
    """Parse ``a.b=c`` into a nested mapping. The value is TOML, or plain text if it is not valid TOML."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise SettingsError(f"{text!r} has no value.", "An assignment is written as search.epsilon=0.4.")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    for part in reversed(key.split(".")):
        parsed = {part: parsed}
    return dict(parsed)


def refuse_unknown(layer: Tree) -> None:
    """Refuse a key that is no setting; name the new name of an old one, or the nearest setting."""
    known = known_keys()
    for key in _leaves(layer):
        if key in RENAMED:
            values = ", ".join(f"{old} is now {str(new).lower()}" for old, new in NEW_VALUES.get(key, {}).items())
            raise SettingsError(
                f"The setting {key} is now called {RENAMED[key]}.",
                f"Write {RENAMED[key]}{f' ({values})' if values else ''}.",
            )
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            guess = f"Did you mean {near[0]}?" if near else "`stark config` lists all settings."
            raise SettingsError(f"There is no setting {key}.", guess)


@functools.cache
def known_keys() -> list[str]:
    """Return every setting by its dotted name."""
    return [key for key, _ in _fields(Settings)]


@functools.cache
def _mapping_keys() -> frozenset[str]:
    """Return the settings whose own value is a mapping, such as a limit for each provider."""
    default = Settings()
    return frozenset(key for key in known_keys() if isinstance(_value(default, key), Mapping))


def meaning(key: str) -> str:
    """Return the documentation of a setting."""
    return dict(_fields(Settings))[key]


def explain(settings: Settings) -> list[tuple[str, Any, str]]:
    """Return every setting with its effective value and its meaning."""
    return [(key, _value(settings, key), text) for key, text in _fields(Settings)]


def _fields(group: type[Group], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, field in group.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Group):
            yield from _fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", " ".join((field.description or "").split())


def _value(settings: Settings, key: str) -> Any:
    value: Any = settings.model_dump(mode="json")
    for part in key.split("."):
        value = value[part]
    return value


def _leaves(layer: Tree, prefix: str = "") -> Iterator[str]:
    for name, value in layer.items():
        if isinstance(value, Mapping) and f"{prefix}{name}" not in _mapping_keys():
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _merge(base: Tree, over: Tree) -> dict[str, Any]:
    result = dict(base)
    for name, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
        result[name] = _merge(result[name], value) if both else value
    return result


def differences(wanted: Mapping[str, Any], stored: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting that is stored with another value: its group, and both values in words."""
    for name, value in wanted.items():
        key, other = f"{above}{name}", stored.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from differences(value, other, f"{key}.")
        elif value != other:
            yield key.partition(".")[0], f"{key} = {other!r} (now {value!r})"
