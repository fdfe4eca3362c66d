"""Executes the statements of a task's functions."""

from __future__ import annotations

import ast
from typing import Any

from stark.models.playbook.trace.objects import Module, attach_path
from stark.models.playbook.trace.values import Unsupported

STORING = ("self.register_buffer", "self.register_parameter", "self.add_module")


class Return(Exception):
    """Carries what a function returns out of its statements."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Statements:
    """Statements; the interpreter adds expressions."""

    def __init__(self) -> None:
        self._is_training = True

    def evaluate(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _truth(self, node: ast.expr, scope: dict[str, Any]) -> bool:
        raise NotImplementedError

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        raise NotImplementedError

    def _execute_statement(self, node: ast.stmt, scope: dict[str, Any]) -> None:
        if isinstance(node, ast.If | ast.For):
            self._execute_block(node, scope)
            return
        match node:
            case ast.Assign(targets=[target]):
                self._assign(target, self.evaluate(node.value, scope), scope)
            case ast.AnnAssign(value=ast.expr() as value):
                self._assign(node.target, self.evaluate(value, scope), scope)
            case ast.Raise():
                raise Unsupported(quote(node))
            case ast.AugAssign(target=ast.Name(id=name)):
                scope[name] = self._binary(node.op, scope[name], self.evaluate(node.value, scope))
            case ast.Expr():
                self._execute_expression(node.value, scope)
            case ast.Return():
                raise Return(None if node.value is None else self.evaluate(node.value, scope))
            case ast.Pass() | ast.Assert():
                pass
            case _:
                raise Unsupported(quote(node))

    def _execute_block(self, node: ast.If | ast.For, scope: dict[str, Any]) -> None:
        if isinstance(node, ast.If):
            for statement in node.body if self._truth(node.test, scope) else node.orelse:
                self._execute_statement(statement, scope)
            return
        for item in self._items(self.evaluate(node.iter, scope)):
            self._assign(node.target, item, scope)
            for statement in node.body:
                self._execute_statement(statement, scope)

    def _execute_expression(self, node: ast.expr, scope: dict[str, Any]) -> None:
        text = ast.unparse(node)
        if isinstance(node, ast.Constant) or text.endswith("Module.__init__(self)") or text == "super().__init__()":
            return
        if text == "self.eval()":
            self._is_training = False
            return
        if isinstance(node, ast.Call) and ast.unparse(node.func) in STORING:
            name, value = (self.evaluate(each, scope) for each in node.args[:2])
            self._store(scope["self"], name, value)
            return
        self.evaluate(node, scope)

    def _assign(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                self._store(scope["self"], name, value)
            case ast.Tuple() | ast.List():
                for each, part in zip(target.elts, self._items(value), strict=True):
                    self._assign(each, part, scope)
            case _:
                raise Unsupported(f"an assignment to `{ast.unparse(target)}`")

    def _store(self, module: Module, name: str, value: Any) -> None:
        module.attributes[name] = attach_path(value, f"{module.path}.{name}")

    def _items(self, value: Any) -> list[Any]:
        if isinstance(value, dict):  # torch.max along a dimension
            return list(value.values())
        if not isinstance(value, tuple | list | range):
            raise Unsupported("a loop over, or the parts of, something that is no list")
        return list(value)


def quote(node: ast.AST) -> str:
    return f"`{ast.unparse(node)[:60]}`"
