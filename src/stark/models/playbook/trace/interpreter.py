"""Interprets a task's source without running it: numbers as in Python, tensors as values of known shape.

Anything else raises ``Unsupported`` and is named in plain words.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

from stark.models.playbook.trace.library_calls import LAYERS, LIBRARY
from stark.models.playbook.trace.objects import (
    CREATION,
    BoundLayer,
    DottedName,
    Module,
    attach_path,
    create_tensor,
    find_imports,
    resolve_name,
)
from stark.models.playbook.trace.operations import FUSABLE
from stark.models.playbook.trace.values import Unsupported, Value, pointwise

KNOWN = {**LIBRARY, **FUSABLE}
_OPERATORS: dict[type, tuple[str, Callable[..., Any]]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("sub", operator.sub),
    ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv),
    ast.Pow: ("pow", operator.pow),
    ast.MatMult: ("matmul", operator.matmul),
    ast.FloorDiv: ("", operator.floordiv),
    ast.Mod: ("", operator.mod),
}
_SAME_IN_PLACE = frozenset({"add_", "mul_", "sub_", "div_", "relu_", "clamp_"})


class _Return(Exception):
    """Carries what a function returns out of its statements."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Interpreter:
    """Interprets the functions and classes of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._globals: dict[str, Any] = {}
        self._defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._globals.update(find_imports(node))
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                self._execute_statement(node, self._globals)

    # -- functions and classes

    def find_class(self, name: str) -> ast.ClassDef:
        node = self._defined.get(name)
        if not isinstance(node, ast.ClassDef):
            raise Unsupported(f"a task without a class {name}")
        return node

    def call_function(self, name: str, *args: Any) -> Any:
        node = self._defined.get(name)
        if not isinstance(node, ast.FunctionDef):
            raise Unsupported(f"the function {name}")
        return self._run(node, dict(zip([each.arg for each in node.args.args], args, strict=False)))

    def construct(self, node: ast.ClassDef, path: str, args: list[Any], options: dict[str, Any]) -> Module:
        module = Module(node, path)
        for each in node.body:
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                names = [arg.arg for arg in each.args.args[1:]]
                defaults = [self.evaluate(default, dict(self._globals)) for default in each.args.defaults]
                bound = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
                self._run(each, {"self": module, **bound, **dict(zip(names, args, strict=False)), **options})
        return module

    def parameters(self, module: Module) -> list[str]:
        return [arg.arg for arg in self._forward(module).args.args[1:]]

    def forward(self, module: Module, inputs: tuple[Any, ...]) -> Any:
        node = self._forward(module)
        return self._run(node, {"self": module, **dict(zip(self.parameters(module), inputs, strict=False))})

    def _forward(self, module: Module) -> ast.FunctionDef:
        for node in module.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "forward":
                return node
        raise Unsupported(f"the class {module.node.name} without a forward()")

    def _run(self, node: ast.FunctionDef, scope: dict[str, Any]) -> Any:
        try:
            for statement in node.body:
                self._execute_statement(statement, scope)
        except _Return as returned:
            return returned.value
        return None

    # -- statements

    def _execute_statement(self, node: ast.stmt, scope: dict[str, Any]) -> None:
        if isinstance(node, ast.If | ast.For):
            self._execute_block(node, scope)
            return
        match node:
            case ast.Assign(targets=[target]):
                self._assign(target, self.evaluate(node.value, scope), scope)
            case ast.AnnAssign(value=ast.expr() as value):
                self._assign(node.target, self.evaluate(value, scope), scope)
            case ast.AugAssign(target=ast.Name(id=name)):
                scope[name] = self._binary(node.op, scope[name], self.evaluate(node.value, scope))
            case ast.Expr():
                self._execute_expression(node.value, scope)
            case ast.Return():
                raise _Return(None if node.value is None else self.evaluate(node.value, scope))
            case ast.Pass() | ast.Assert():
                pass
            case _:
                raise Unsupported(_quote(node))

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
        if isinstance(node, ast.Constant) or ast.unparse(node).startswith("super("):
            return
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.register_buffer":
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

    # -- expressions

    def evaluate(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        """Evaluate an expression."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name(id=name):
                return self._look_up(name, scope)
            case ast.Attribute():
                return self._attribute(self.evaluate(node.value, scope), node.attr)
            case ast.BinOp():
                return self._binary(node.op, self.evaluate(node.left, scope), self.evaluate(node.right, scope))
            case ast.UnaryOp(op=ast.USub()):
                value = self.evaluate(node.operand, scope)
                return pointwise("neg", value) if isinstance(value, Value) else -value
            case ast.Tuple() | ast.List():
                return [self.evaluate(each, scope) for each in node.elts]
            case ast.Call():
                return self._call(node, scope)
            case ast.Subscript():
                return self._item(self.evaluate(node.value, scope), node.slice, scope)
            case ast.IfExp():
                return self.evaluate(node.body if self._truth(node.test, scope) else node.orelse, scope)
        raise Unsupported(_quote(node))

    def _look_up(self, name: str, scope: dict[str, Any]) -> Any:
        for known in (scope, self._globals, self._defined):
            if name in known:
                return known[name]
        if name in ("range", "len", "int", "float", "tuple", "list"):
            return {"range": range, "len": len, "int": int, "float": float, "tuple": tuple, "list": list}[name]
        raise Unsupported(f"the name {name}")

    def _attribute(self, owner: Any, name: str) -> Any:
        match owner:
            case DottedName():
                return resolve_name(f"{owner.dotted}.{name}")
            case Module() if name in owner.attributes:
                return owner.attributes[name]
            case Value() if name == "shape":
                return list(owner.shape)
            case Value() if name in ("T", "mT"):
                return KNOWN["transpose"](owner, -2, -1)
            case Value() if name in KNOWN or name in _SAME_IN_PLACE:
                return lambda *args, **options: KNOWN[name.removesuffix("_")](owner, *args, **options)
            case dict() if name in owner:
                return owner[name]
        raise Unsupported(f"the attribute {name}")

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if type(op) not in _OPERATORS:
            raise Unsupported(f"the operator {type(op).__name__}")
        name, compute = _OPERATORS[type(op)]
        if not isinstance(left, Value) and not isinstance(right, Value):
            return compute(left, right)
        if name not in KNOWN:
            raise Unsupported(f"the operator {type(op).__name__} on tensors")
        return KNOWN[name](left, right)

    def _truth(self, node: ast.expr, scope: dict[str, Any]) -> bool:
        """Evaluate a condition on numbers and settings; one on tensors is not supported."""
        match node:
            case ast.Compare(ops=[ast.Is() | ast.IsNot() as op]):
                same = self.evaluate(node.left, scope) is self.evaluate(node.comparators[0], scope)
                return same if isinstance(op, ast.Is) else not same
            case ast.Name() | ast.Attribute() | ast.Constant():
                value = self.evaluate(node, scope)
                if isinstance(value, bool | int | float | str | None):
                    return bool(value)
        raise Unsupported(f"the condition {_quote(node)}")

    def _item(self, value: Any, index: ast.expr, scope: dict[str, Any]) -> Any:
        if isinstance(value, Value) or isinstance(index, ast.Slice):
            raise Unsupported(f"a part `[{ast.unparse(index)}]` of a tensor or list")
        key = self.evaluate(index, scope)
        return self._items(value)[key] if isinstance(value, dict) else value[key]

    def _call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        called = self.evaluate(node.func, scope)
        args = [self.evaluate(each, scope) for each in _positional_args(node)]
        options = {each.arg: self.evaluate(each.value, scope) for each in node.keywords if each.arg}
        try:
            return self._apply(called, args, options)
        except (TypeError, ValueError, AttributeError, IndexError) as error:  # arguments that do not fit a handler
            raise Unsupported(_quote(node)) from error

    def _apply(self, called: Any, args: list[Any], options: dict[str, Any]) -> Any:
        match called:
            case DottedName(dotted=name):
                return self._call_torch(name, args, options)
            case ast.ClassDef():
                return self.construct(called, "", args, options)
            case ast.FunctionDef():
                return self.call_function(called.name, *args)
            case BoundLayer():
                return called.layer(args[0], called.path)
            case Module():
                return self.forward(called, tuple(args))
            case list():  # nn.Sequential
                for layer in called:
                    args = [self._apply(layer, args, {})]
                return args[0]
        return called(*args, **options)

    def _call_torch(self, name: str, args: list[Any], options: dict[str, Any]) -> Any:
        last = name.rpartition(".")[2]
        options = {key: value for key, value in options.items() if key not in ("dtype", "device")}
        if name.startswith("torch.") and last in CREATION:
            return create_tensor(last, args)
        if last == "Parameter":
            return args[0]
        if last in ("Sequential", "ModuleList"):
            return list(args[0]) if last == "ModuleList" and args else args
        if name.startswith("torch.nn.") and last in LAYERS:
            return BoundLayer(LAYERS[last](*args, **options))
        if last in KNOWN:
            return KNOWN[last](*args, **options)
        if name.startswith("math."):
            return getattr(math, last)(*args)
        raise Unsupported(name)


def _quote(node: ast.AST) -> str:
    return f"`{ast.unparse(node)[:60]}`"


def _positional_args(node: ast.Call) -> Iterator[ast.expr]:
    for each in node.args:
        if isinstance(each, ast.Starred):
            raise Unsupported(_quote(node))
        yield each
