"""Objects of the interpreter: PyTorch's names, layers, and the task's own modules."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from stark.models.playbook.trace.library_calls import Layer
from stark.models.playbook.trace.values import INTEGERS, Unsupported, Value

CREATION = frozenset({"randn", "rand", "zeros", "ones", "empty", "full", "randint", "arange", "tensor"})


@dataclass(frozen=True)
class DottedName:
    """A dotted name of PyTorch, such as torch.nn.functional.gelu."""

    dotted: str


@dataclass(frozen=True)
class BoundLayer:
    """A layer and the Python expression for it."""

    layer: Layer
    path: str = ""
    in_evaluation: Layer | None = None  # where that is another one


@dataclass
class Module:
    """An object of a class in the task's file, with the attributes of its __init__."""

    node: ast.ClassDef
    path: str
    attributes: dict[str, Any] = field(default_factory=dict)


def create_tensor(name: str, args: list[Any]) -> Value:
    if name == "tensor":
        return Value("created", _shape_of(args[0]), holds="" if "." in str(args[0]) else INTEGERS)
    if name == "arange":
        return Value("created", (len(range(*args)),), holds=INTEGERS)
    if name == "randint":
        return Value("created", tuple(args[-1]), holds=INTEGERS)
    sizes = args[0] if args and isinstance(args[0], list | tuple) else args[:1] if name == "full" else args
    if not all(isinstance(size, int) for size in sizes):
        raise Unsupported("a tensor whose shape is not made of numbers")
    return Value("created", tuple(sizes))


def _shape_of(values: Any) -> tuple[int, ...]:
    return (len(values), *_shape_of(values[0])) if isinstance(values, list) and values else ()


_NUMBERS = frozenset({"math.pi", "math.e", "math.inf", "math.tau", "torch.pi", "torch.e", "torch.inf"})


def resolve_name(dotted: str) -> Any:
    return getattr(math, dotted.partition(".")[2]) if dotted in _NUMBERS else DottedName(dotted)


def find_imports(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, DottedName]]:
    for each in node.names:
        if isinstance(node, ast.Import):
            name = each.name if each.asname else each.name.partition(".")[0]
            yield each.asname or name, DottedName(name)
        else:
            yield each.asname or each.name, DottedName(f"{node.module}.{each.name}")


def attach_path(value: Any, path: str) -> Any:
    """Give an attribute of a module its Python expression."""
    match value:
        case Value():
            return Value("weight", value.shape, text=path, holds=value.holds)
        case BoundLayer():
            return replace(value, path=path)
        case Module():
            value.path = path
            value.attributes = {name: attach_path(each, f"{path}.{name}") for name, each in value.attributes.items()}
            return value
        case list() if any(isinstance(each, BoundLayer | Module) for each in value):
            return [attach_path(each, f"{path}[{index}]") for index, each in enumerate(value)]
    return value
