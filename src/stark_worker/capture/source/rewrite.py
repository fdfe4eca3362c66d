"""Rewrites a definition for a task: global names become names of the task, and settled conditions disappear.

A module's configuration is known, so ``self.config.eps`` becomes a number, and a branch that never runs is left out.
"""

from __future__ import annotations

import ast
import builtins
import copy
import logging
import os
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stark_worker.capture.source.lookup import Found, bound_names, is_installed
from stark_worker.capture.source.syntax import (
    argument_names,
    function_names,
    is_static,
    parse_expression,
    stored_attributes,
    strip_annotations,
)

if TYPE_CHECKING:
    from stark_worker.capture.source.definitions import Definitions

SIMPLE = (bool, int, float, str, type(None))
NEVER = ("torch.jit.is_scripting", "torch.jit.is_tracing")  # nothing is scripted or traced here
LOGGING = ("_log_api_usage_once",)
UNKNOWN = object()


class Rewriter(ast.NodeTransformer):
    """Rewrites definitions of one namespace. ``instances`` are the live modules of the class that is rewritten."""

    def __init__(
        self, definitions: Definitions, namespace: Mapping[str, Any], found: Found, instances: Sequence[Any] = ()
    ) -> None:
        self._definitions, self._namespace, self._found = definitions, namespace, found
        self._instances = instances
        self._locals: list[set[str]] = []
        self._self = ""
        self._stored = stored_attributes(found.node)
        self._settled: list[Mapping[str, Any]] = []
        self.mentioned: set[str] = set()

    # -- scopes

    def visit_FunctionDef(self, node: Any) -> Any:
        kept = [each for each in node.decorator_list if "docstring" not in ast.unparse(each)]
        node.decorator_list = [self.visit(each) for each in kept]
        arguments = node.args
        arguments.defaults = [self.visit(each) for each in arguments.defaults]
        arguments.kw_defaults = [each and self.visit(each) for each in arguments.kw_defaults]
        names = argument_names(arguments)
        outer, is_method = self._self, bool(self._instances) and not self._locals
        if is_method and names and not is_static(node):
            self._self = names[0]
        self._locals.append({*names, *function_names(node.body)})
        strip_annotations(node, self._is_known_annotation)
        self._settled.append(self._find_settled(node))
        node.body = self._visit_block(node.body)
        self._settled.pop()
        self._locals.pop()
        self._self = outer
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def _find_settled(self, node: Any) -> dict[str, Any]:
        """Return the arguments that have one value in all calls of this capture and are not assigned."""
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        known = self._definitions.settled.get((self._found.file, first), {})
        assigned = function_names(node.body)
        return {name: value for name, value in known.items() if name not in assigned}

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        node.args.defaults = [self.visit(each) for each in node.args.defaults]
        self._locals.append(set(argument_names(node.args)))
        node.body = self.visit(node.body)
        self._locals.pop()
        return node

    def _visit_comprehension(self, node: Any) -> Any:
        targets = {name.id for each in node.generators for name in ast.walk(each.target) if isinstance(name, ast.Name)}
        self._locals.append(targets)
        found = self.generic_visit(node)
        self._locals.pop()
        return found

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        node.bases = [self.visit(each) for each in node.bases]
        names = set().union(*map(bound_names, node.body))
        body = []
        for member in node.body:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                body.append(self.visit(member))
                continue
            self._locals.append(names)
            body.append(self.visit(member))
            self._locals.pop()
        node.body = body
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if self._instances and not self._locals:  # of a module's class
            return node.value and ast.Assign(targets=[node.target], value=self.visit(node.value), lineno=node.lineno)
        node.target = self.visit(node.target)
        node.value = node.value and self.visit(node.value)
        if self._locals and self._self and node.value is not None and not self._is_known_annotation(node.annotation):
            return ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno)
        return node

    def _is_local(self, name: str) -> bool:
        return any(name in names for names in self._locals)

    def _is_known_annotation(self, node: ast.expr) -> bool:
        """True if an annotation names only torch and built-in types, so that it can stay."""
        names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
        text = any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(node))
        return not text and all(name == "torch" or hasattr(builtins, name) for name in names)

    # -- names

    def visit_Name(self, node: ast.Name) -> Any:
        self.mentioned.add(node.id)
        if not isinstance(node.ctx, ast.Load) or self._is_local(node.id):
            return node
        text = self._definitions.resolve(node.id, self._namespace, self._found, node)
        return node if text is None else parse_expression(text, node)

    def visit_Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, str) and node.value.isidentifier():
            self.mentioned.add(node.value)  # getattr(self, "name")
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.mentioned.add(node.attr)
        if isinstance(node.ctx, ast.Load):
            if (value := self._configuration(node)) is not UNKNOWN:
                return ast.copy_location(ast.Constant(value), node)
            if (found := self._member_of_module(node)) is not None:
                return found
        return self.generic_visit(node)

    def _member_of_module(self, node: ast.Attribute) -> ast.expr | None:
        """Replace ``layers.Block`` by the name in the task if ``layers`` is a module that is taken by source."""
        owner = self._global_value(node.value)
        if not isinstance(owner, types.ModuleType) or not self._definitions.is_open(owner.__name__):
            return None
        value = getattr(owner, node.attr, None)
        if isinstance(value, types.ModuleType):
            return None
        text = self._definitions.resolve(node.attr, vars(owner), self._found, node)
        return None if text is None else parse_expression(text, node)

    def _global_value(self, node: ast.expr) -> Any:
        """Return the live value of a global name or of an attribute of a module; None for anything else."""
        if isinstance(node, ast.Name) and not self._is_local(node.id):
            return self._namespace.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(owner := self._global_value(node.value), types.ModuleType):
            return getattr(owner, node.attr, None)
        return None

    # -- the configuration of modules

    def _configuration(self, node: ast.Attribute) -> Any:
        """Return the value of ``self.training`` in evaluation mode and of ``self.config.name``; otherwise UNKNOWN."""
        path = self._path_from_self(node)
        if path is None or path[0] in self._stored:
            return UNKNOWN
        if path == ["training"]:
            return False if not any(each.training for each in self._instances) else UNKNOWN
        owners = [getattr(each, path[0], None) for each in self._instances]
        if len(path) < 2 or any(isinstance(each, (torch.nn.Module, torch.Tensor, *SIMPLE)) for each in owners):
            return UNKNOWN
        return self._same_value(path)

    def _same_value(self, path: Sequence[str]) -> Any:
        """Return the simple value that a path has in all instances."""
        values: list[Any] = []
        for value in self._instances:
            for name in path:
                value = getattr(value, name, UNKNOWN)
            values.append(value)
        first = values[0] if values else UNKNOWN
        same = all(type(value) is type(first) and value == first for value in values if isinstance(value, SIMPLE))
        return first if same and all(type(value) in SIMPLE for value in values) else UNKNOWN

    def _path_from_self(self, node: ast.expr) -> list[str] | None:
        path: list[str] = []
        while isinstance(node, ast.Attribute):
            path.insert(0, node.attr)
            node = node.value
        is_self = isinstance(node, ast.Name) and node.id == self._self != ""
        return path if is_self and path and self._instances else None

    def visit_Call(self, node: ast.Call) -> Any:
        if self._global_value(node.func) == os.environ.get and all(
            isinstance(each, ast.Constant) for each in node.args
        ):
            return ast.Constant(os.environ.get(*(each.value for each in node.args)))  # type: ignore[attr-defined]
        value = self._registered(node)
        if value is not UNKNOWN:
            return parse_expression(self._definitions.refer(value, self._found.place(node)), node)
        return self.generic_visit(node)

    def _registered(self, node: ast.Call) -> Any:
        """Return the function that a registry of a package yields for this configuration; otherwise UNKNOWN."""
        if not isinstance(node.func, ast.Attribute) or node.keywords or not self._self:
            return UNKNOWN
        registry = self._global_value(node.func.value)
        known = (type(None), types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType)
        if isinstance(registry, known) or not self._definitions.is_open(type(registry).__module__):
            return UNKNOWN
        values = []
        for argument in node.args:
            value = self._configuration(argument) if isinstance(argument, ast.Attribute) else UNKNOWN
            value = argument.value if isinstance(argument, ast.Constant) else value
            values.append(self._global_value(argument) if value is UNKNOWN else value)
        try:
            found = getattr(registry, node.func.attr)(*values)
        except (TypeError, KeyError, ValueError, AttributeError):
            return UNKNOWN
        return found if isinstance(found, types.FunctionType) else UNKNOWN

    def visit_Expr(self, node: ast.Expr) -> Any:
        """Leave out a line that writes to a log."""
        function = node.value.func if isinstance(node.value, ast.Call) else None
        is_log = isinstance(function, ast.Attribute) and isinstance(self._global_value(function.value), logging.Logger)
        is_log = is_log or (isinstance(function, ast.Name) and function.id in LOGGING)
        return None if is_log else self.generic_visit(node)

    # -- settled conditions

    def visit_If(self, node: ast.If) -> Any:
        truth = self._truth(node.test)
        if truth is None:
            node.test = self.visit(node.test)
            node.body, node.orelse = self._visit_block(node.body), self._visit_block(node.orelse)
            node.body = node.body or ([ast.Pass()] if node.orelse else [])
            return node if node.body else None
        return self._visit_block(node.body if truth else node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        truth = self._truth(node.test)
        return self.generic_visit(node) if truth is None else self.visit(node.body if truth else node.orelse)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        neutral = isinstance(node.op, ast.And)
        truth = self._truth(node)
        if truth is not None and self._is_condition(node):
            return ast.Constant(truth)
        left = [each for each in node.values[:-1] if self._truth(each) is not neutral] + node.values[-1:]
        node.values = [self.visit(each) for each in left]
        return node if len(node.values) > 1 else node.values[0]

    def _is_condition(self, node: ast.BoolOp) -> bool:
        return all(isinstance(each, ast.Compare | ast.UnaryOp | ast.BoolOp) for each in node.values)

    def _visit_block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Visit statements; leave out those that come after a return."""
        done: list[ast.stmt] = []
        for statement in body:
            found = self.visit(statement)
            done += found if isinstance(found, list) else [found] if found is not None else []
            if done and isinstance(done[-1], ast.Return | ast.Raise):
                break
        return done

    def _truth(self, node: ast.expr) -> bool | None:
        """Return the value of a condition that is settled; otherwise None."""
        match node:
            case ast.Constant():
                return bool(node.value)
            case ast.UnaryOp(op=ast.Not()):
                truth = self._truth(node.operand)
                return None if truth is None else not truth
            case ast.BoolOp():
                return self._truth_of_several(node)
            case ast.Call() if ast.unparse(node) in [f"{name}()" for name in NEVER]:
                return False
            case ast.Call(
                func=ast.Name(id="hasattr"), args=[ast.Name(id=name), ast.Constant(value=str() as attribute)]
            ):
                there = {hasattr(each, attribute) for each in self._instances} if name == self._self != "" else set()
                return there.pop() if len(there) == 1 else None
            case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name() as name, _]) if self._setting(name) is None:
                return False
            case ast.Attribute() | ast.Name():
                value = self._setting(node)
                return None if value is UNKNOWN else bool(value)
            case ast.Compare(left=ast.Call(), ops=[ast.Eq()], comparators=[ast.Constant(value=right)]) if (
                isinstance(called := self.visit_Call(copy.deepcopy(node.left)), ast.Constant)  # type: ignore[arg-type]
            ):
                return bool(called.value == right)
            case ast.Compare(ops=[operation], comparators=[right]):
                return self._compare(self._setting(node.left), operation, self._setting(right))
        return None

    def _truth_of_several(self, node: ast.BoolOp) -> bool | None:
        truths, neutral = [self._truth(each) for each in node.values], isinstance(node.op, ast.And)
        if (not neutral) in truths:
            return not neutral
        return None if None in truths else neutral

    def _setting(self, node: ast.expr) -> Any:
        """Return the value of a constant, or of an attribute that no method writes and all instances share."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._settled_name(node)
        path = self._path_from_self(node)
        if path is None or path[0] in self._stored or (path == ["training"] and self._configuration(node) is UNKNOWN):  # type: ignore[arg-type]
            return UNKNOWN
        return self._same_value(path)

    def _settled_name(self, node: ast.Name) -> Any:
        """Return the value of an argument that never varies, or of a package's flag."""
        if self._settled and node.id in self._settled[-1]:
            return self._settled[-1][node.id]
        value = UNKNOWN if self._is_local(node.id) else self._namespace.get(node.id, UNKNOWN)
        return value if isinstance(value, bool) and is_installed(str(self._namespace.get("__name__"))) else UNKNOWN

    def _compare(self, left: Any, operation: ast.cmpop, right: Any) -> bool | None:
        if left is UNKNOWN or right is UNKNOWN:
            return None
        match operation:
            case ast.Is() | ast.Eq():
                return bool(left == right)
            case ast.IsNot() | ast.NotEq():
                return bool(left != right)
        return None
