"""Finds the source of live objects: the file or notebook cell, the syntax tree, and the lines of a definition."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import site
import sys
import sysconfig
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stark_worker.capture.faults import CaptureFault

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
INSTALLED = tuple(
    {
        str(Path(path).resolve())
        for path in (
            *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
            *site.getsitepackages(),
            site.getusersitepackages(),
        )
    }
)


@dataclass(frozen=True)
class Found:
    """A definition in a source."""

    node: Definition
    file: str

    def place(self, node: ast.AST | None = None) -> str:
        """Return the file and the line, for a message."""
        return f"{Path(self.file).name}, line {getattr(node, 'lineno', None) or self.node.lineno}"


@functools.cache
def parse_file(file: str) -> ast.Module | None:
    """Return the syntax tree of a file or notebook cell; None if it cannot be read."""
    text = "".join(linecache.getlines(file))
    if not text:
        return None
    try:
        return ast.parse(text)
    except SyntaxError:
        # A cell may hold magic commands, which are no Python.
        kept = [f"pass  # {line}" if line.lstrip().startswith(("%", "!")) else line for line in text.splitlines()]
        try:
            return ast.parse("\n".join(kept))
        except SyntaxError:
            return None


def parse_module(module: types.ModuleType | None) -> ast.Module | None:
    """Return the syntax tree of a module's file."""
    file = getattr(module, "__file__", None)
    return parse_file(file) if file and file.endswith(".py") else None


def is_installed(name: str) -> bool:
    """True for a module of the standard library or of an installed package, and for a built-in one."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None:
        paths = list(getattr(module, "__path__", []))
        return name.partition(".")[0] != "__main__" and not (paths and not _lies_in(paths[0]))
    return _lies_in(file)


def _lies_in(path: str) -> bool:
    real = str(Path(path).resolve())
    return any(real.startswith(f"{folder}/") for folder in INSTALLED)


def find_definition(thing: Any) -> Found | None:
    """Return the definition of a class or function; None if its source cannot be read."""
    for file, line in _candidates(thing):
        if (tree := parse_file(file)) and (node := _find_node(tree, thing, line)):
            return Found(node, file)
    return None


def require_definition(thing: Any) -> Found:
    """Return the definition of a class or function; refuse one without source."""
    found = find_definition(thing)
    if found is None:
        raise CaptureFault(
            f"The source of {thing.__module__}.{thing.__qualname__} cannot be read; define it in a file or in a cell."
        )
    return found


def _candidates(thing: Any) -> Iterator[tuple[str, int]]:
    """Yield files that may hold the source, each with a line inside the definition, or 0 if it is not known."""
    for code in _codes(thing):
        yield code.co_filename, code.co_firstlineno
    if file := getattr(sys.modules.get(thing.__module__), "__file__", None):
        yield file, 0


def _codes(thing: Any) -> Iterator[types.CodeType]:
    if isinstance(thing, type):
        for value in vars(thing).values():
            function = unwrap(value)
            if (
                isinstance(function, types.FunctionType)
                and function.__qualname__ == f"{thing.__qualname__}.{function.__name__}"
            ):
                yield function.__code__
    elif isinstance(function := unwrap(thing), types.FunctionType):
        yield function.__code__


def unwrap(value: Any) -> Any:
    """Return the function under decorators that say what they wrap, and under static and class methods."""
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", value)
    return inspect.unwrap(value) if callable(value) else value


def _find_node(tree: ast.Module, thing: Any, line: int) -> Definition | None:
    name = getattr(unwrap(thing), "__name__", "")
    kinds = (ast.ClassDef,) if isinstance(thing, type) else (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == name]
    around = [node for node in found if _begin(node) <= line <= (node.end_lineno or 0)]
    if line:
        return around[-1] if around else None
    return found[0] if len(found) == 1 else None


def _begin(node: Definition) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def find_binding(tree: ast.Module, name: str) -> ast.stmt | None:
    """Return the last statement of a module that gives a name its value, also inside ``if`` and ``try``."""
    found = None
    for node in tree.body:
        if name in bound_names(node):
            found = node
    return found


def bound_names(node: ast.AST) -> set[str]:
    """Return the names that a statement binds in its own scope."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Import() | ast.ImportFrom():
            return {each.asname or each.name.partition(".")[0] for each in node.names}
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return set()
        case ast.Name(ctx=ast.Store()):
            return {node.id}
        case ast.ExceptHandler(name=str() as name):
            return {name}.union(*map(bound_names, node.body))
    return set().union(*map(bound_names, ast.iter_child_nodes(node)))


def find_import(tree: ast.AST, name: str) -> tuple[ast.Import | ast.ImportFrom, ast.alias] | None:
    """Return the import that binds a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    return node, alias
    return None


def absolute_module(node: ast.ImportFrom, namespace: dict[str, Any]) -> str:
    """Return the absolute name of the module that a relative import names."""
    if not node.level:
        return node.module or ""
    package = namespace.get("__package__") or namespace.get("__name__", "").rpartition(".")[0]
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base


def namespace_of(value: Any) -> dict[str, Any]:
    """Return the global names that a class or function sees, with those of the functions around it."""
    functions = [unwrap(each) for each in vars(value).values()] if isinstance(value, type) else [unwrap(value)]
    found: dict[str, Any] = {}
    for function in functions:
        if isinstance(function, types.FunctionType) and function.__module__ == value.__module__:
            found = found or dict(function.__globals__)
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
                if name != "__class__":
                    found[name] = cell.cell_contents
    return found or dict(vars(sys.modules.get(value.__module__) or builtins))
