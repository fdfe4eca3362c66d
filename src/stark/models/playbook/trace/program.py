"""Reads a task's source into a graph of values."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace

from stark.models.playbook.trace.interpreter import Interpreter
from stark.models.playbook.trace.values import Shape, Unsupported, Value

CONTRACT = ("get_inputs", "get_init_inputs")


@dataclass(frozen=True)
class Program:
    """A traced task. ``preamble`` holds its imports and constants, ``construction`` Model's __init__."""

    source: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    returns_tuple: bool
    preamble: str
    construction: str


def read_task(source: str, resized: Mapping[int, int] | None = None) -> Program:
    """Trace the task's Model, with the first dimension of inputs ``resized``."""
    try:
        return _read(source, resized or {})
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        # A task may do anything with numbers that Python can.
        raise Unsupported(f"what to make of it ({type(error).__name__}: {error})") from error


def _read(source: str, resized: Mapping[int, int]) -> Program:
    reader = Interpreter(ast.parse(source))
    arguments = reader.call_function("get_init_inputs")
    model = reader.construct(reader.find_class("Model"), "self", list(arguments), {})
    given = reader.call_function("get_inputs")
    if not all(isinstance(each, Value) for each in given):
        raise Unsupported("an input that is not a tensor of numbers")
    names = reader.parameters(model)
    if len(names) != len(given):
        raise Unsupported("a forward() that takes more or fewer arguments than get_inputs() gives")
    shapes = [_resize(each.shape, resized) for each in given]
    kinds = [each.holds for each in given]
    inputs = tuple(Value("input", *each) for each in zip(shapes, [()] * len(shapes), names, strict=True))
    inputs = tuple(replace(each, holds=kind) for each, kind in zip(inputs, kinds, strict=True))
    result = reader.forward(model, inputs)
    outputs = tuple(result) if isinstance(result, tuple | list) else (result,)
    if not outputs or not all(isinstance(each, Value) for each in outputs):
        raise Unsupported("a forward() that returns something other than tensors")
    return Program(source, inputs, outputs, isinstance(result, tuple | list), *_find_preamble(source, model.node))


def _resize(shape: Shape, sizes: Mapping[int, int]) -> Shape:
    return (sizes.get(shape[0], shape[0]), *shape[1:]) if shape else shape


def _find_preamble(source: str, model: ast.ClassDef) -> tuple[str, str]:
    """The preamble as written in the source, and Model's __init__."""
    module = ast.parse(source)
    module.body = [node for node in module.body if ast.unparse(node) != "from __future__ import annotations"]
    kept = [
        node
        for node in module.body
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign)
        or (isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name not in (model.name, *CONTRACT))
    ]
    texts = [ast.get_source_segment(source, node) or "" for node in kept]
    preamble = "\n".join(text for text in texts if text != "import torch")  # every candidate has that one
    construction = next((node for node in model.body if _is_function(node, "__init__")), None)
    if construction is None:
        return preamble, "def __init__(self) -> None:\n    super().__init__()"
    return preamble, ast.unparse(construction)  # normalises the indentation


def _is_function(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name
