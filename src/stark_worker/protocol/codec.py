"""TODO."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from typing import Any, TypeVar

PROTOCOL_VERSION = 1


class ProtocolError(ValueError):
    """A message that is not what the protocol says it should be."""


Record = TypeVar("Record")


def to_json(record: Any) -> str:
    """The record as one line of JSON."""
    return json.dumps(dataclasses.asdict(record), ensure_ascii=False, allow_nan=False)


def from_json(kind: type[Record], text: str | bytes) -> Record:
    """The record that ``to_json`` wrote; anything else is a ProtocolError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}") from error
    return typing.cast(Record, _read(kind, data, kind.__name__))


def _read(kind: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_optional(kind, data, where)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, data, where)
    if origin is tuple:
        items, inner = _expect(list, data, where), typing.get_args(kind)[0]
        if inner is float and all(type(item) is float for item in items):  # samples, by the million in a benchmark
            return tuple(items)
        return tuple(_read(inner, item, where) for item in items)
    if origin is dict:
        value_kind = typing.get_args(kind)[1]
        return {str(key): _read(value_kind, value, where) for key, value in _expect(dict, data, where).items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(data)
        except ValueError as error:
            raise ProtocolError(f"{where}: {error}") from error
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError as error:
            raise ProtocolError(f"{where}: {error}") from error
    return _expect(kind, data, where)


def _read_optional(kind: Any, data: Any, where: str) -> Any:
    if data is None:
        return None
    (inner,) = (choice for choice in typing.get_args(kind) if choice is not type(None))
    return _read(inner, data, where)


def _read_dataclass(kind: Any, data: Any, where: str) -> Any:
    _expect(dict, data, where)
    hints = _hints(kind)
    if unknown := data.keys() - hints.keys():
        raise ProtocolError(f"{where}: unknown field {sorted(unknown)[0]!r}")
    values = {name: _read(hints[name], value, f"{where}.{name}") for name, value in data.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ProtocolError(f"{where}: {error}") from error


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _expect(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise ProtocolError(f"{where}: expected {kind.__name__}, got {type(data).__name__}")
    return data
