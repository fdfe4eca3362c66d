"""Interprets a task's source without running it: numbers as in Python, tensors as values of known shape.

Anything else raises ``Unsupported`` and is named in plain words.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import Any

from stark.models.playbook.trace.classes import BoundMethod, Super, bind, find_method, foreign_base
from stark.models.playbook.trace.inference import EVALUATION_LAYERS
from stark.models.playbook.trace.inference import index as index_tensor
from stark.models.playbook.trace.library_calls import LAYERS, LIBRARY
from stark.models.playbook.trace.objects import (
    CREATION,
    BoundLayer,
    DottedName,
    Module,
    create_tensor,
    find_imports,
    resolve_name,
)
from stark.models.playbook.trace.operations import FUSABLE
from stark.models.playbook.trace.python import BUILTINS, COMPARISONS, OPERATORS
from stark.models.playbook.trace.statements import Return, Statements, quote
from stark.models.playbook.trace.values import Unsupported, Value, pointwise

KNOWN = {**LIBRARY, **FUSABLE}
_SAME_IN_PLACE = frozenset({"add_", "mul_", "sub_", "div_", "relu_", "clamp_"})


class Interpreter(Statements):
    """Interprets the functions and classes of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._globals: dict[str, Any] = {}
        super().__init__()
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

    def call_function(self, name: str, *args: Any, **options: Any) -> Any:
        node = self._defined.get(name)
        if not isinstance(node, ast.FunctionDef):
            raise Unsupported(f"the function {name}")
        return self._call_node(node, args, options)

    def construct(self, node: ast.ClassDef, path: str, args: list[Any], options: dict[str, Any]) -> Module:
        module = Module(node, path)
        if found := find_method(node, "__init__", self._defined):
            self._call_node(found[0], [module, *args], options, found[1])
        return module

    def parameters(self, module: Module) -> list[str]:
        return [arg.arg for arg in self._forward(module)[0].args.args[1:]]

    def forward(self, module: Module, inputs: tuple[Any, ...], options: Mapping[str, Any] | None = None) -> Any:
        if foreign := self._foreign_layers(module):
            return self._apply(foreign, list(inputs), {})
        node, owner = self._forward(module)
        return self._call_node(node, [module, *inputs], options or {}, owner)

    def _foreign_layers(self, module: Module) -> list[Any]:
        """The modules inside a Sequential that a class of the file extends, unless it has its own forward()."""
        has_own = find_method(module.node, "forward", self._defined)
        return self._layers(module) if not has_own and self._is_sequential(module) else []

    def _layers(self, module: Module) -> list[Any]:
        return [each for each in module.attributes.values() if isinstance(each, BoundLayer | Module | list)]

    def _is_sequential(self, module: Module) -> bool:
        return foreign_base(module.node, self._defined).rpartition(".")[2] == "Sequential"

    def _forward(self, module: Module) -> tuple[ast.FunctionDef, ast.ClassDef]:
        found = find_method(module.node, "forward", self._defined)
        if found is None:
            raise Unsupported(f"the class {module.node.name} without a forward()")
        return found

    def _call_node(
        self, node: ast.FunctionDef, args: Sequence[Any], options: Mapping[str, Any], owner: ast.ClassDef | None = None
    ) -> Any:
        bound = bind(node, args, options, lambda default: self.evaluate(default, dict(self._globals)))
        return self._run(node, {**bound, "__class__": owner, "__self__": args[0] if owner else None})

    def _run(self, node: ast.FunctionDef, scope: dict[str, Any]) -> Any:
        try:
            for statement in node.body:
                self._execute_statement(statement, scope)
        except Return as returned:
            return returned.value
        return None

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
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self._truth(node, scope)
            case ast.UnaryOp(op=ast.USub()):
                value = self.evaluate(node.operand, scope)
                return pointwise("neg", value) if isinstance(value, Value) else -value
            case ast.Tuple() | ast.List():
                return self._evaluate_all(node.elts, scope)
            case ast.Call():
                return self._call(node, scope)
        return self._evaluate_part(node, scope)

    def _evaluate_part(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        if isinstance(node, ast.Subscript):
            return self._item(self.evaluate(node.value, scope), node.slice, scope)
        if isinstance(node, ast.Dict) and all(node.keys):
            keys = [self.evaluate(each, scope) for each in node.keys if each]
            return dict(zip(keys, self._evaluate_all(node.values, scope), strict=True))
        if isinstance(node, ast.IfExp):
            return self.evaluate(node.body if self._truth(node.test, scope) else node.orelse, scope)
        raise Unsupported(quote(node))

    def _look_up(self, name: str, scope: dict[str, Any]) -> Any:
        for known in (scope, self._globals, self._defined):
            if name in known:
                return known[name]
        if name in BUILTINS:
            return BUILTINS[name]
        if name == "hasattr":
            return lambda owner, wanted: isinstance(owner, Module) and wanted in owner.attributes
        if name == "getattr":
            return lambda owner, wanted, *default: owner.attributes.get(wanted, *default)
        raise Unsupported(f"the name {name}")

    def _attribute(self, owner: Any, name: str) -> Any:
        match owner:
            case DottedName():
                return resolve_name(f"{owner.dotted}.{name}")
            case Module() | Super():
                return self._attribute_of_module(owner, name)
            case Value() if name in ("dtype", "device", "ndim"):
                return len(owner.shape) if name == "ndim" else name
            case Value() if name == "shape":
                return list(owner.shape)
            case Value() if name in ("T", "mT"):
                return KNOWN["transpose"](owner, -2, -1)
            case Value() if name in KNOWN or name in _SAME_IN_PLACE:
                return lambda *args, **options: KNOWN[name.removesuffix("_")](owner, *args, **options)
            case dict() if name in owner or name in ("get", "pop"):
                return owner[name] if name in owner else getattr(owner, name)
        raise Unsupported(f"the attribute {name}")

    def _attribute_of_module(self, owner: Module | Super, name: str) -> Any:
        match owner:
            case Module() if name in owner.attributes:
                return owner.attributes[name]
            case Module() if name == "training":
                return self._is_training
            case Module() if found := find_method(owner.node, name, self._defined):
                return BoundMethod(owner, *found)
            case Super() if found := find_method(owner.module.node, name, self._defined, owner.owner):
                return BoundMethod(owner.module, *found)
            case Super() if name == "forward" and self._is_sequential(owner.module):
                return self._layers(owner.module)
        raise Unsupported(f"the attribute {name}")

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if type(op) not in OPERATORS:
            raise Unsupported(f"the operator {type(op).__name__}")
        name, compute = OPERATORS[type(op)]
        if not isinstance(left, Value) and not isinstance(right, Value):
            return compute(left, right)
        if name not in KNOWN:
            raise Unsupported(f"the operator {type(op).__name__} on tensors")
        return KNOWN[name](left, right)

    def _truth(self, node: ast.expr, scope: dict[str, Any]) -> bool:
        """Evaluate a condition on numbers and settings; one on tensors is not supported."""
        match node:
            case ast.UnaryOp(op=ast.Not()):
                return not self._truth(node.operand, scope)
            case ast.BoolOp():
                stop = isinstance(node.op, ast.Or)
                return stop if any(self._truth(each, scope) is stop for each in node.values) else not stop
            case ast.Compare(ops=[operation], comparators=[right]) if type(operation) in COMPARISONS:
                one, other = self.evaluate(node.left, scope), self.evaluate(right, scope)
                is_identity = isinstance(operation, ast.Is | ast.IsNot)
                if is_identity or not (isinstance(one, Value) or isinstance(other, Value)):
                    return bool(COMPARISONS[type(operation)](one, other))
            case ast.Name() | ast.Attribute() | ast.Constant() | ast.Call():
                value = self.evaluate(node, scope)
                if isinstance(value, bool | int | float | str | None):
                    return bool(value)
        raise Unsupported(f"the condition {quote(node)}")

    def _item(self, value: Any, index: ast.expr, scope: dict[str, Any]) -> Any:
        keys = [self._key(each, scope) for each in (index.elts if isinstance(index, ast.Tuple) else [index])]
        if isinstance(value, Value):
            return index_tensor(value, keys)
        return self._items(value)[keys[0]] if isinstance(value, dict) and isinstance(keys[0], int) else value[keys[0]]

    def _key(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        if not isinstance(node, ast.Slice):
            return self.evaluate(node, scope)
        ends = [each and self.evaluate(each, scope) for each in (node.lower, node.upper, node.step)]
        return slice(*ends)

    def _evaluate_all(self, nodes: Sequence[ast.expr], scope: dict[str, Any]) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found += self._items(self.evaluate(node.value, scope))
            else:
                found.append(self.evaluate(node, scope))
        return found

    def _call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return Super(scope["__self__"], scope["__class__"])
        called = self.evaluate(node.func, scope)
        options: dict[str, Any] = {}
        args = self._evaluate_all(node.args, scope)
        for each in node.keywords:
            value = self.evaluate(each.value, scope)
            options |= {each.arg: value} if each.arg else value
        try:
            return self._apply(called, args, options)
        except (TypeError, ValueError, AttributeError, IndexError) as error:  # arguments that do not fit a handler
            raise Unsupported(quote(node)) from error

    def _apply(self, called: Any, args: list[Any], options: dict[str, Any]) -> Any:
        match called:
            case DottedName(dotted=name):
                return self._call_torch(name, args, options)
            case ast.ClassDef():
                return self.construct(called, "", args, options)
            case ast.FunctionDef():
                return self._call_node(called, args, options)
            case BoundMethod():
                return self._call_node(called.node, [called.module, *args], options, called.owner)
            case BoundLayer():
                layer = called.layer if self._is_training else called.in_evaluation or called.layer
                return layer(args[0], called.path)
            case Module():
                return self.forward(called, tuple(args), options)
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
            if last.endswith("Loss"):
                return LAYERS[last](*args, **options)
            in_evaluation = EVALUATION_LAYERS[last](*args, **options) if last in EVALUATION_LAYERS else None
            return BoundLayer(LAYERS[last](*args, **options), in_evaluation=in_evaluation)
        if last in KNOWN:
            return KNOWN[last](*args, **options)
        if name.startswith("math."):
            return getattr(math, last)(*args)
        raise Unsupported(name)
