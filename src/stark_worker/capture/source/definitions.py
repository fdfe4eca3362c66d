"""Collects the definitions that a module needs, by their source, and everything these name in turn."""

from __future__ import annotations

import ast
import builtins
import copy
import math
import operator
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from stark_worker.capture.faults import CaptureFault
from stark_worker.capture.source.literals import format_value
from stark_worker.capture.source.lookup import (
    Found,
    absolute_module,
    bound_names,
    find_binding,
    find_definition,
    find_import,
    is_installed,
    namespace_of,
    parse_module,
    require_definition,
    unwrap,
)
from stark_worker.capture.source.rewrite import Rewriter
from stark_worker.capture.source.syntax import names_at_definition

RESERVED = ("Model", "get_inputs", "get_init_inputs", "torch", "nn", *dir(builtins))
HOMES: Mapping[str, Any] = {
    "nn": torch.nn,
    "torch.nn.functional": torch.nn.functional,
    "torch": torch,
    "math": math,
    "operator": operator,
}
LEFT_OUT = frozenset({"__init__", "__repr__", "__getstate__", "__setstate__", "__constants__", "__doc__", "__module__"})
MAX_CLASS_LINES = 800  # of a class of an installed package that is taken by source
NOT_MODULES = (int, float, str, bytes, bool, type(None), torch.dtype)


Settled = Mapping[tuple[str, int], Mapping[str, Any]]  # arguments that never vary, by file and line of a function


@dataclass
class ModuleClass:
    """The definition of a module's class. Its methods are added when something names them."""

    node: ast.ClassDef
    rewriter: Rewriter
    members: list[ast.stmt]
    is_whole: bool  # True if all bases are known by source or belong to torch
    added: dict[int, ast.stmt] = field(default_factory=dict)

    def find_wanted(self, mentioned: set[str]) -> Iterator[tuple[int, ast.stmt]]:
        for number, member in enumerate(self.members):
            names = bound_names(member)
            wanted = names & mentioned or {name for name in names if name.startswith("__") and name.endswith("__")}
            if number not in self.added and wanted - LEFT_OUT:
                yield number, member


class Definitions:
    """The text of a task as it grows. Code of the packages in ``opened`` is taken by source, other code is imported."""

    def __init__(
        self,
        opened: frozenset[str] = frozenset(),
        instances: Mapping[type, list[Any]] | None = None,
        settled: Settled | None = None,
        keeps_constructors: bool = False,
    ) -> None:
        self._keeps_constructors = keeps_constructors
        self._opened, self._instances, self.settled = opened, instances or {}, settled or {}
        self._imports: dict[str, None] = {"import torch": None, "import torch.nn as nn": None}
        self._helpers: dict[str, str] = {}
        self._entries: list[ast.stmt] = []
        self._names: dict[Any, str] = {}
        self._kept: list[Any] = []  # what is known by its id has to stay alive
        self._taken = set(RESERVED)
        self.classes: dict[type, ModuleClass] = {}
        self.mentioned: set[str] = {"forward"}

    # -- output

    def use_import(self, line: str) -> None:
        self._imports[line] = None

    def use_helper(self, name: str, text: str) -> None:
        self._taken.add(name)
        self._helpers[name] = text.strip()

    def unique(self, name: str) -> str:
        """Return a name that nothing else has."""
        chosen, number = name, 2
        while chosen in self._taken:
            chosen, number = f"{name}_{number}", number + 1
        self._taken.add(chosen)
        return chosen

    def imports(self) -> str:
        """Return the lines of imports, sorted."""
        plain = sorted(line for line in self._imports if line.startswith("import "))
        return "\n".join([*plain, *sorted(line for line in self._imports if line not in plain)])

    def texts(self) -> list[str]:
        """Return helpers and definitions, each after those that it needs when it is made."""
        ordered: dict[int, ast.stmt] = {}
        by_name = {name: entry for entry in self._entries for name in bound_names(entry)}

        def add(entry: ast.stmt) -> None:
            if id(entry) not in ordered:
                ordered[id(entry)] = entry
                for name in names_at_definition(entry):
                    if name in by_name and by_name[name] is not entry:
                        add(by_name[name])
                ordered[id(entry)] = ordered.pop(id(entry))

        modules = {id(each.node) for each in self.classes.values()}
        for entry in sorted(self._entries, key=lambda each: id(each) in modules or isinstance(each, ast.ClassDef)):
            add(entry)  # classes last: their decorators call functions
        return [*self._helpers.values(), *(ast.unparse(ast.fix_missing_locations(entry)) for entry in ordered.values())]

    # -- names

    def is_open(self, module: str | None) -> bool:
        """True if a module's code is taken by source."""
        if not module or module.partition(".")[0] in ("torch", "builtins", "typing"):
            return False
        return module.partition(".")[0] in self._opened or not is_installed(module)

    def refer(self, value: Any, path: str, wanted: str = "") -> str:
        """Return an expression for a live class, function or module."""
        if isinstance(value, types.ModuleType):
            return self._import_module(value, wanted)
        if (key := id(value)) in self._names:
            return self._names[key]
        name = getattr(value, "__name__", "")
        for home, owner in HOMES.items():
            if isinstance(name, str) and name and getattr(owner, name, None) is value:
                if home in ("math", "operator"):
                    self.use_import(f"import {home}")
                return f"{home}.{name}"
        if isinstance(name, str) and name and getattr(builtins, name, None) is value:
            return name
        if (
            self.is_open(value.__module__)
            and (found := find_definition(value))
            and not _is_better_imported(value, found)
        ):
            return self.define(value, found)
        return self._import_object(value, path)

    def resolve(self, name: str, namespace: Mapping[str, Any], found: Found, node: ast.AST) -> str | None:
        """Return an expression for a global name; None if it stays as it is."""
        if name not in namespace:
            return None
        value, where = namespace[name], found.place(node)
        if isinstance(value, types.ModuleType) and self.is_open(value.__name__):
            raise CaptureFault(f"the module {name} is used as a value, which cannot be written as source.", where)
        if isinstance(value, types.ModuleType | type | types.FunctionType | types.BuiltinFunctionType):
            try:
                return self.refer(value, f"{name} at {where}", name)
            except CaptureFault:
                if is_installed(str(namespace.get("__name__"))):
                    return self._resolve_object(name, namespace, where)
                raise
        if callable(value) and find_definition(unwrap(value)) and hasattr(value, "__wrapped__"):
            return self.refer(value, f"{name} at {where}", name)
        return self._resolve_object(name, namespace, where)

    def _resolve_object(self, name: str, namespace: Mapping[str, Any], where: str) -> str:
        """Return the name of a global that is no class, function or module."""
        home = str(namespace.get("__name__", ""))
        key = (home, name)
        if key in self._names:
            return self._names[key]
        module = sys.modules.get(home)
        tree = parse_module(module)
        statement = find_binding(tree, name) if tree else None
        if statement is not None and (imported := find_import(statement, name)):
            return self._follow_import(*imported, name, dict(namespace), where)
        if statement is not None and not is_installed(home) and not _is_literal(namespace[name]):
            return self._add_statement(statement, name, namespace, Found(statement, str(module.__file__)))  # type: ignore[union-attr, arg-type]
        try:
            text = format_value(namespace[name], self, name)
        except CaptureFault as fault:
            if module is None or home == "__main__" or vars(module).get(name) is not namespace[name]:
                raise CaptureFault(f"{fault} Define it in a file.", where) from None
            return self._import_from(home, name)
        chosen = self._names[key] = self.unique(name)
        self._entries.append(ast.parse(f"{chosen} = {text}").body[0])
        return chosen

    def _follow_import(
        self, node: ast.Import | ast.ImportFrom, alias: ast.alias, name: str, namespace: dict[str, Any], where: str
    ) -> str:
        """Go to the module that a name comes from."""
        if isinstance(node, ast.Import):
            return self._import_module(namespace[name], name)
        target = absolute_module(node, namespace)
        if self.is_open(target) and target in sys.modules and alias.name in vars(sys.modules[target]):
            return self._resolve_object(alias.name, vars(sys.modules[target]), where)
        return self._import_from(target, alias.name)

    def _add_statement(self, statement: ast.stmt, name: str, namespace: Mapping[str, Any], found: Found) -> str:
        """Take the statement that gives a global its value."""
        for bound in bound_names(statement):
            self._names[(namespace["__name__"], bound)] = bound
            if bound in self._taken:
                raise CaptureFault(f"two things are called {bound}; rename one.", found.place(statement))
            self._taken.add(bound)
        node = Rewriter(self, namespace, found).visit(copy.deepcopy(statement))
        self._entries.append(node)
        return name

    def _import_module(self, module: types.ModuleType, wanted: str) -> str:
        name, known = module.__name__, self._names.get(id(module))
        if known or name in ("torch", "torch.nn"):
            return known or {"torch": "torch", "torch.nn": "nn"}[name]
        if name.startswith("torch."):
            if name != "torch.nn.functional":
                self.use_import(f"import {name}")
            return name
        alias = self.unique(wanted or name.rpartition(".")[2])
        self.use_import(f"import {name}" if alias == name else f"import {name} as {alias}")
        self._names[id(module)] = alias
        return alias

    def _import_object(self, value: Any, path: str) -> str:
        home, name = value.__module__, getattr(value, "__qualname__", "")
        outer = name.partition(".")[0]
        owner: Any = sys.modules.get(home or "")
        try:
            is_there = operator.attrgetter(name)(owner) is value
        except AttributeError:
            is_there = False
        if not is_there or home == "__main__" or not is_installed(home):
            require_definition(value)
            raise CaptureFault(f"{path} cannot be taken by its source or imported.")
        return self._import_from(home, outer) + name.removeprefix(outer)

    def _import_from(self, home: str, name: str) -> str:
        key = (home, name)
        if key not in self._names:
            alias = self._names[key] = self.unique(name)
            self.use_import(f"from {home} import {name}" + (f" as {alias}" if alias != name else ""))
        return self._names[key]

    # -- definitions

    def define(self, value: Any, found: Found | None = None, name: str = "") -> str:
        """Take a class or function by its source; return its name in the task."""
        if id(value) in self._names:
            return self._names[id(value)]
        found = found or require_definition(value)
        if _is_better_imported(value, found):
            raise CaptureFault(f"{value.__qualname__} is too long to be taken by source.")
        chosen = name or self.unique(value.__name__.replace("<lambda>", "function"))
        self._names[id(value)] = chosen
        self._kept.append(value)
        node = copy.deepcopy(found.node)
        node.name = chosen
        namespace = namespace_of(value)
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and not self._keeps_constructors:
            self._add_class(value, node, namespace, found)  # type: ignore[arg-type]
        else:
            rewriter = Rewriter(self, namespace, found)
            self._entries.append(rewriter.visit(node))
            self.mentioned |= rewriter.mentioned
        return chosen

    def _add_class(self, kind: type, node: ast.ClassDef, namespace: Mapping[str, Any], found: Found) -> None:
        """Add a module's class with its bases. Decorators of classes document or register, and are left out."""
        rewriter = Rewriter(self, namespace, found, self._instances.get(kind, []))
        members, node.body, node.decorator_list = node.body, [], []
        if members and isinstance(members[0], ast.Expr) and isinstance(members[0].value, ast.Constant):
            node.body = [members.pop(0)]
        node.bases = [_parse(self.refer(base, f"a base of {kind.__name__}")) for base in kind.__bases__]
        bases = [self.classes[base].is_whole if base in self.classes else _is_torch(base) for base in kind.__bases__]
        self.classes[kind] = ModuleClass(node, rewriter, members, all(bases))
        self._entries.append(node)

    def complete(self) -> None:
        """Add the methods that something names, until nothing names another."""
        while pending := [
            (each, *found) for each in list(self.classes.values()) for found in each.find_wanted(self.mentioned)
        ]:
            for each, number, member in pending:
                each.added[number] = each.rewriter.visit(copy.deepcopy(member))
                self.mentioned |= each.rewriter.mentioned

    def finish_class(self, kind: type, init: ast.stmt | None) -> None:
        """Put the constructor and the methods into a class."""
        made = self.classes[kind]
        members = [made.added[number] for number in sorted(made.added) if made.added[number] is not None]
        made.node.body += [*([init] if init else []), *members] or [ast.Pass()]

    def add_subclass(self, name: str, base: str, body: list[ast.stmt]) -> None:
        """Add a class with another constructor or another signature."""
        made = ast.parse(f"class {name}({base}): pass").body[0]
        assert isinstance(made, ast.ClassDef)
        made.body = body
        self._entries.append(made)


def _is_better_imported(value: Any, found: Found) -> bool:
    """True for a class of an installed package that is no module, or that is a framework of its own."""
    if not isinstance(value, type) or not is_installed(value.__module__):
        return False
    lines = (found.node.end_lineno or 0) - found.node.lineno
    return not issubclass(value, torch.nn.Module) or lines > MAX_CLASS_LINES


def _is_torch(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] in ("torch", "abc", "typing")


def _is_literal(value: Any) -> bool:
    return isinstance(value, NOT_MODULES)


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
