"""Writes the reference page from the code: settings, commands with options, exit codes."""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic.fields import FieldInfo
from typer.core import TyperGroup

from stark.bench.grid import GridFile
from stark.core import errors
from stark.core.settings import Group, Settings
from stark_worker import __main__ as worker

_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_TYPES = {str: "text", int: "whole number", float: "number", bool: "true or false"}

_COLUMNS = ["setting", "type", "default", "meaning"]

Named = tuple[str, Group]  # a group of settings with its dotted name


def reference_page(commands: TyperGroup, exit_codes: Mapping[int, str]) -> str:
    """The whole page as Markdown. ``exit_codes`` maps each code to its meaning."""
    parts = [
        "# Reference",
        "`scripts/reference` writes this page from the code; a test compares the two. "
        "[Settings](#settings) · [Grids](#grids) · [Commands](#commands) · [Exit codes](#exit-codes) · "
        "[Worker](#worker)",
        "## Settings",
        "Settings come from a TOML file (`--config FILE`, see [configs](../configs)), then `--set a.b=c`, then a "
        "command's own options; the last one wins. `stark config` prints the effective values.",
        *_settings(),
        "## Grids",
        "A TOML file for `stark bench --grid FILE`; the command's own options win.",
        _grid(),
        "## Commands",
        *_commands(commands),
        "## Exit codes",
        _table(["code", "meaning"], [[str(code), meaning] for code, meaning in exit_codes.items()]),
        "Every expected failure is one of these errors. It states what failed and what to do next:",
        _block((errors.__doc__ or "").partition("\n\n")[2]),
        "## Worker",
        _block(worker.__doc__ or ""),
    ]
    return "\n\n".join(parts) + "\n"


# -- settings -------------------------------------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    """One table per kind of group; the four roles share one."""
    by_kind: dict[type[Group], list[Named]] = {}
    for name, group in _groups("", Settings()):
        by_kind.setdefault(type(group), []).append((name, group))
    for kind, groups in by_kind.items():
        names = ", ".join(f"`{name}`" for name, _ in groups if name)
        yield f"### {names or 'The run'}"
        yield _one_line(kind.__doc__)
        rows = [_row(key, field, groups) for key, field in kind.model_fields.items() if not _is_group(field)]
        yield _table(_COLUMNS, rows)


def _grid() -> str:
    given = [("", GridFile())]
    return _table(_COLUMNS, [_row(key, field, given) for key, field in GridFile.model_fields.items()])


def _groups(name: str, group: Group) -> Iterator[Named]:
    yield name, group
    for key, field in type(group).model_fields.items():
        if _is_group(field):
            yield from _groups(f"{name}.{key}".lstrip("."), getattr(group, key))


def _is_group(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Group)


def _row(key: str, field: FieldInfo, groups: Sequence[Named]) -> list[str]:
    first = groups[0][0]
    prefix = first if len(groups) == 1 else f"{first.rpartition('.')[0]}.*"
    defaults = {label.rpartition(".")[2]: _value(getattr(group, key)) for label, group in groups}
    if len({*defaults.values()}) == 1:
        default = next(iter(defaults.values()))
    else:
        default = ", ".join(f"{value} ({label})" for label, value in defaults.items())
    name = f"{prefix}.{key}".lstrip(".")
    return [f"`{name}`", _type(field), default, _one_line(field.description)]


def _type(field: FieldInfo) -> str:
    rules = [(sign, getattr(rule, name, None)) for rule in field.metadata for name, sign in _SIGNS.items()]
    bounds = [f"{sign} {bound:g}" for sign, bound in rules if bound is not None]
    return " ".join([_words(field.annotation), ", ".join(bounds)]).strip()


def _words(kind: Any) -> str:
    """A type in words."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_words(each) for each in arguments if each is not types.NoneType)
    if typing.get_origin(kind) is tuple:
        return f"list of {_words(arguments[0])}"
    if typing.get_origin(kind) is dict:
        return f"table of {_words(arguments[1])}s"
    if typing.get_origin(kind) is typing.Annotated:
        return _words(arguments[0])
    if issubclass(kind, enum.Enum):
        return " or ".join(f"`{choice.value}`" for choice in kind)
    return _TYPES[kind]


def _value(value: Any) -> str:
    if value is None or value in ("", ()):
        return "unset"
    if isinstance(value, tuple):
        return ", ".join(map(_value, value))
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


# -- commands -------------------------------------------------------------------------------------------------------


def _commands(commands: TyperGroup) -> Iterator[str]:
    with commands.make_context("stark", [], resilient_parsing=True) as above:
        for name in commands.list_commands(above):
            command = commands.commands[name]
            context = command.context_class(command, info_name=name, parent=above)
            usage = _one_line(command.get_usage(context)).removeprefix("Usage: ")
            yield f"### stark {name}"
            yield _one_line(command.help)
            yield _block(re.sub(r"[{}]", "", usage))
            records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
            rows = [[_option(names), _one_line(text)] for names, text in filter(None, records) if names != "--help"]
            yield _table(["option", "meaning"], rows)


def _option(names: str) -> str:
    plain = re.sub(r"<list.(.+).>|<(.+) range>", r"<\1\2>", names)
    return f"`{plain}`"


# -- Markdown -------------------------------------------------------------------------------------------------------


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _block(text: str) -> str:
    return f"```text\n{text.strip(chr(10))}\n```"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
