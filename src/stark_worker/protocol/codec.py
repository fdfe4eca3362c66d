"""Records as JSON and back. Reading checks every type and refuses unknown fields.

A dataclass whose fields had other names or forms before defines a static method ``upgrade_json``. It takes the fields
of an older version and returns those of this one.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

PROTOCOL_VERSION = 1


class ProtocolError(ValueError):
    """A message that breaks the protocol."""


Record = TypeVar("Record")


def to_json(record: Any) -> str:
    """Return the record as one line of JSON."""
    return json.dumps(dataclasses.asdict(record), ensure_ascii=False, allow_nan=False)


def from_json(kind: type[Record], text: str | bytes) -> Record:
    """Return the record that this version or an older one wrote; raise ProtocolError for anything else."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}") from error
    return from_data(kind, data)


def from_data(kind: type[Record], data: Any) -> Record:
    """Return the record that this decoded JSON stands for; raise ProtocolError if it stands for none."""
    return typing.cast(Record, _read_value(kind, data, kind.__name__))


def rename_fields(data: Mapping[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields under their new names. An old name next to its new one stays, so that it is refused."""
    return {name if (new := new_names.get(name, name)) in data else new: value for name, value in data.items()}


def _read_value(kind: Any, data: Any, path: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_optional(kind, data, path)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, data, path)
    if origin is tuple:
        return _read_tuple(typing.get_args(kind)[0], data, path)
    if origin is dict:
        value_kind = typing.get_args(kind)[1]
        return {str(key): _read_value(value_kind, value, path) for key, value in _expect(dict, data, path).items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(data)
        except ValueError as error:
            raise ProtocolError(f"{path}: {error}") from error
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError as error:
            raise ProtocolError(f"{path}: {error}") from error
    return _expect(kind, data, path)


def _read_optional(kind: Any, data: Any, path: str) -> Any:
    if data is None:
        return None
    (inner,) = (choice for choice in typing.get_args(kind) if choice is not type(None))
    return _read_value(inner, data, path)


def _read_tuple(item_kind: Any, data: Any, path: str) -> tuple[Any, ...]:
    items = _expect(list, data, path)
    if item_kind is float and all(type(item) is float for item in items):  # timing samples: a benchmark has millions
        return tuple(items)
    return tuple(_read_value(item_kind, item, path) for item in items)


def _read_dataclass(kind: Any, data: Any, path: str) -> Any:
    _expect(dict, data, path)
    if upgrade := getattr(kind, "upgrade_json", None):
        data = upgrade(data)
    hints = _hints(kind)
    if unknown := data.keys() - hints.keys():
        raise ProtocolError(f"{path}: unknown field {sorted(unknown)[0]!r}")
    values = {name: _read_value(hints[name], value, f"{path}.{name}") for name, value in data.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ProtocolError(f"{path}: {error}") from error


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _expect(kind: type, data: Any, path: str) -> Any:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise ProtocolError(f"{path}: expected {kind.__name__}, got {type(data).__name__}")
    return data
