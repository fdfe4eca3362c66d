"""A task: a PyTorch file with ``Model``, ``get_inputs()`` and ``get_init_inputs()`` (KernelBench's contract).

The file is read and checked as text. It is never imported here: only the worker runs other people's code.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from stark.core.errors import TaskError

CONTRACT = "A task file defines class Model(nn.Module), get_inputs() and get_init_inputs(); see examples/tasks."


@dataclass(frozen=True)
class Task:
    """The reference to be made faster, and what the user added to it. KernelBench's tasks have a level and a number."""

    name: str
    source: str
    hint: str = ""
    level: int | None = None
    number: int | None = None


def load_task(path: Path, hint: str = "") -> Task:
    """Read a task file, or say in one sentence why it is none."""
    source = read_source(path)
    check_contract(source, path)
    return Task(name=path.stem, source=source, hint=hint)


def read_source(path: Path) -> str:
    """The text of a Python file, or a TaskError that names what is wrong with it."""
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
    """Refuse a file that lacks a part of the contract or gives one the wrong signature."""
    top = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    model = top.get("Model")
    if not isinstance(model, ast.ClassDef):
        swapped = " It defines ModelNew, as a kernel does; the task file comes first." if "ModelNew" in top else ""
        raise TaskError(f"{path} defines no class Model.{swapped}", CONTRACT)
    if not any(isinstance(item, ast.FunctionDef) and item.name == "forward" for item in model.body):
        raise TaskError(f"Model in {path} has no method forward.", CONTRACT)
    for name in ("get_inputs", "get_init_inputs"):
        function = top.get(name)
        if not isinstance(function, ast.FunctionDef):
            raise TaskError(f"{path} defines no function {name}().", CONTRACT)
        if _required_arguments(function):
            raise TaskError(f"{name}() in {path} must be callable without arguments.", CONTRACT)


def load_candidate(path: Path) -> str:
    """Read a file that defines ``ModelNew``, to start a run from or to be judged."""
    source = read_source(path)
    classes = {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    if "ModelNew" not in classes:
        raise TaskError(f"{path} defines no class ModelNew.", "A kernel file defines ModelNew.")
    return source


def _required_arguments(function: ast.FunctionDef) -> bool:
    arguments = function.args
    positional = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    keyword = sum(default is None for default in arguments.kw_defaults)
    return positional + keyword > 0
