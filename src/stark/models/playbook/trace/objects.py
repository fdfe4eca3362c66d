"""What the interpreter handles besides numbers and tensors: PyTorch's names, layers, and modules of the task's own."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stark.models.playbook.trace.library_calls import Layer
from stark.models.playbook.trace.values import Unknown, Value

CREATION = frozenset({"randn", "rand", "zeros", "ones", "empty", "full"})


@dataclass(frozen=True)
class Name:
    """A dotted name of PyTorch's, such as torch.nn.functional.gelu."""

    dotted: str


@dataclass(frozen=True)
class Part:
    """A layer and the Python that names it."""

    layer: Layer
    path: str = ""


@dataclass
class Module:
    """An object of a class in the task's file, with what its __init__ stored in it."""

    node: ast.ClassDef
    path: str
    attributes: dict[str, Any] = field(default_factory=dict)


def created(name: str, args: list[Any]) -> Value:
    sizes = args[0] if args and isinstance(args[0], list | tuple) else args[:1] if name == "full" else args
    if not all(isinstance(size, int) for size in sizes):
        raise Unknown("a tensor whose shape is not made of numbers")
    return Value("created", tuple(sizes))


_NUMBERS = frozenset({"math.pi", "math.e", "math.inf", "math.tau", "torch.pi", "torch.e", "torch.inf"})


def constant(dotted: str) -> Any:
    return getattr(math, dotted.partition(".")[2]) if dotted in _NUMBERS else Name(dotted)


def imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Name]]:
    for each in node.names:
        if isinstance(node, ast.Import):
            name = each.name if each.asname else each.name.partition(".")[0]
            yield each.asname or name, Name(name)
        else:
            yield each.asname or each.name, Name(f"{node.module}.{each.name}")


def placed(value: Any, path: str) -> Any:
    """What is stored in a module, with the Python that names it."""
    match value:
        case Value():
            return Value("weight", value.shape, text=path)
        case Part():
            return Part(value.layer, path)
        case Module():
            value.path = path
            value.attributes = {name: placed(each, f"{path}.{name}") for name, each in value.attributes.items()}
            return value
        case list() if any(isinstance(each, Part | Module) for each in value):
            return [placed(each, f"{path}[{index}]") for index, each in enumerate(value)]
    return value
