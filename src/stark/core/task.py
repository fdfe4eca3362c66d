"""A task: a PyTorch file with ``Model``, ``get_inputs()`` and ``get_init_inputs()`` (KernelBench's contract).

The host reads and checks the file as text and never imports it: only the worker runs foreign code.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from stark.core.errors import TaskError

CONTRACT = "A task file defines class Model(nn.Module), get_inputs() and get_init_inputs(); see examples/tasks."


@dataclass(frozen=True)
class Task:
    """The reference to make faster, and the user's hint. KernelBench's tasks have a level and a number."""

    name: str
    source: str
    hint: str = ""
    level: int | None = None
    number: int | None = None


def load_task(path: Path, hint: str = "") -> Task:
    """Read a task file; raise a TaskError if it is not a task."""
    source = read_source(path)
    check_contract(source, path)
    return Task(name=path.stem, source=source, hint=hint)


def read_source(path: Path) -> str:
    """Read a Python file; raise a TaskError if it is not valid Python."""
    try:
        source = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise TaskError(f"There is no file {path}.", "Check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {error}.", "Give a readable UTF-8 Python file.") from error
    check_syntax(source, path)
    return source


def check_syntax(source: str, path: Path) -> None:
    """Refuse text that is not Python."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f"{path}, line {line}" if line else str(path)
        raise TaskError(f"{place} is not valid Python: {getattr(error, 'msg', error)}.", "Fix the file.") from error


def check_contract(source: str, path: Path) -> None:
    """Refuse a file that lacks a part of the contract or has a wrong signature."""
    top = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    model = top.get("Model")
    if not isinstance(model, ast.ClassDef):
        swapped = " It defines ModelNew, as a kernel does. Give the task file first." if "ModelNew" in top else ""
        raise TaskError(f"{path} defines no class Model.{swapped}", CONTRACT)
    inherits = any(ast.unparse(base) not in ("nn.Module", "torch.nn.Module", "Module") for base in model.bases)
    if not inherits and not any(isinstance(item, ast.FunctionDef) and item.name == "forward" for item in model.body):
        raise TaskError(f"Model in {path} has no method forward.", CONTRACT)
    for name in ("get_inputs", "get_init_inputs"):
        function = top.get(name)
        if not isinstance(function, ast.FunctionDef):
            raise TaskError(f"{path} defines no function {name}().", CONTRACT)
        if _required_arguments(function):
            raise TaskError(f"{name}() in {path} must be callable without arguments.", CONTRACT)


def load_candidate(path: Path) -> str:
    """Read a file that defines ``ModelNew``."""
    source = read_source(path)
    check_candidate(source, path)
    return source


def check_candidate(source: str, path: Path) -> None:
    """Refuse Python that does not define ``ModelNew``; ``path`` names it in the error."""
    classes = {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    if "ModelNew" not in classes:
        raise TaskError(f"{path} defines no class ModelNew.", "A kernel file defines ModelNew.")


def _required_arguments(function: ast.FunctionDef) -> bool:
    arguments = function.args
    positional = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    keyword = sum(default is None for default in arguments.kw_defaults)
    return positional + keyword > 0
