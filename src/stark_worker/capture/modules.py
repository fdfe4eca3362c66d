"""Reads live modules: the statements that make each one, its weights at random and its other tensors as they are."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from stark_worker.capture.faults import CaptureFault
from stark_worker.capture.source.definitions import Definitions
from stark_worker.capture.source.literals import format_constant, format_tensor, format_value, shape_text
from stark_worker.capture.structure import Literal, Made, Statement

OWN = frozenset(nn.Module().__dict__)  # names that every module has
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
STATISTICS = ("running_mean", "running_var")
SKIPPED = ("self", "device", "dtype")
MISSING = object()
NORM = '''
class InferenceBatchNorm(nn.Module):
    """Batch norm in evaluation mode: by its running statistics."""

    def __init__(self, num_features, eps=1e-05, affine=True):
        super().__init__()
        self.eps = eps
        self.register_parameter("weight", nn.Parameter(torch.ones(num_features)) if affine else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(num_features)) if affine else None)
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x):
        mean, variance = self.running_mean, self.running_var
        return torch.nn.functional.batch_norm(x, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
'''


class ModuleReader:
    """Reads a module and those inside it. ``places`` maps a module that was met to its first path."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._places: dict[int, str] = {}
        self._weights: dict[int, str] = {}
        self.ties: list[tuple[str, str]] = []  # a path that is the same object as an earlier one

    def read(self, module: nn.Module, path: str = "self") -> Made:
        """Read a module whose class is taken by source."""
        made = Made(type(module), path)
        for name, value in module.__dict__.items():
            if name not in OWN and self._is_wanted(module, name):
                made.statements += self._read_attribute(module, name, value, path)
        for name, weight in module._parameters.items():
            made.statements.append(self._read_parameter(name, weight, path))
        for name, buffer in module._buffers.items():
            made.statements.append(self._read_buffer(module, name, buffer, path))
        for name, child in module._modules.items():
            made.statements.append(self._read_child(name, child, path))
        return made

    # -- attributes

    def _is_wanted(self, module: nn.Module, name: str) -> bool:
        """True if a method names the attribute. Methods of a class that is imported may name any."""
        known = self._definitions.classes.get(type(module))
        inherits = known is None or not known.is_whole or type(module).__bases__ != (nn.Module,)
        is_torch = inherits and any(
            kind.__module__.startswith("torch.nn.modules.") and kind is not nn.Module for kind in type(module).__mro__
        )
        return name in self._definitions.mentioned or is_torch or known is None or not known.is_whole

    def _read_attribute(self, module: nn.Module, name: str, value: Any, path: str) -> Iterator[Statement]:
        place = f"{path}.{name}"
        if isinstance(value, types.MethodType) and value.__self__ is module:
            self._definitions.mentioned.add(value.__name__)
            yield Statement(f"self.{name}", [f"self.{value.__name__}"])
            return
        if isinstance(value, nn.Module | nn.Parameter) or name == "forward":
            raise CaptureFault(f"{place} was set on the module itself, past its class; capture cannot follow that.")
        try:
            text = self._format(_argument(module, name) if name in ("p", "dropout") else value, place)
        except CaptureFault:
            known = self._definitions.classes.get(type(module))
            if known is None or not known.is_whole:
                return  # nothing that is captured names it, as far as can be seen
            raise
        yield Statement(f"self.{name}", [Literal(text, name)])

    def _format(self, value: Any, place: str) -> str:
        try:
            return format_value(value, self._definitions, place)
        except CaptureFault:
            if not hasattr(value, "__dict__") or isinstance(value, type | nn.Module) or callable(value):
                raise
        fields = []
        for name in sorted(self._definitions.mentioned):  # a configuration
            field = getattr(value, name, MISSING) if name.isidentifier() and not name.startswith("__") else MISSING
            if isinstance(field, bool | int | float | str | list | tuple | dict | None | torch.dtype):
                fields.append(f"{name}={format_value(field, self._definitions, f'{place}.{name}')}")
        self._definitions.use_import("import types")
        return f"types.SimpleNamespace({', '.join(fields)})"

    # -- weights and buffers

    def _read_parameter(self, name: str, weight: nn.Parameter | None, path: str) -> Statement:
        form = (
            "self.register_parameter({target!r}, {value})"
            if weight is None or not name.isidentifier()
            else "self.{target} = {value}"
        )
        return Statement(name, self._weight_parts(weight, f"{path}.{name}", name), form)

    def _weight_parts(self, weight: nn.Parameter | None, path: str, hint: str) -> list[Any]:
        if weight is None:
            return ["None"]
        if is_lazy(weight):
            raise CaptureFault(f"{path} is not initialised yet; call the module once before it is captured.")
        if not weight.is_floating_point():
            raise CaptureFault(f"{path} holds {weight.dtype}, which no random weights can stand for.")
        self._note_tie(weight, path)
        frozen = "" if weight.requires_grad else ", requires_grad=False"
        return ["nn.Parameter(", Literal(_random_weights(weight), f"{hint}_values"), f"{frozen})"]

    def _note_tie(self, weight: torch.Tensor, path: str) -> None:
        if (first := self._weights.setdefault(id(weight), path)) != path:
            self.ties.append((path, first))

    def _read_buffer(self, module: nn.Module, name: str, buffer: torch.Tensor | None, path: str) -> Statement:
        last = ", persistent=False" if name in module._non_persistent_buffers_set else ""
        form = f"self.register_buffer({{target!r}}, {{value}}{last})"
        if buffer is None:
            return Statement(name, ["None"], form)
        if name in STATISTICS:
            text = f"torch.{'zeros' if name == 'running_mean' else 'ones'}({shape_text(buffer.shape)})"
        else:
            text = format_tensor(buffer, self._definitions, f"{path}.{name}")
        return Statement(name, [Literal(text, name)], form)

    # -- modules inside

    def _read_child(self, name: str, child: nn.Module | None, path: str) -> Statement:
        form = "self.{target} = {value}" if name.isidentifier() else "self.add_module({target!r}, {value})"
        return Statement(name, self.parts(child, _join(path, name), name), form)

    def parts(self, child: nn.Module | None, path: str, hint: str) -> list[Any]:
        """Return the parts of the expression that makes a module."""
        if child is None:
            return ["None"]
        _refuse_strange(child, path)
        if (first := self._places.setdefault(id(child), path)) != path:
            self.ties.append((path, first))
        kind = type(child)
        if (
            isinstance(child, nn.modules.batchnorm._BatchNorm)
            and kind.__module__.startswith("torch.")
            and not child.training
            and child.running_mean is not None
        ):
            return self._frozen_norm(child, hint)
        if kind in (nn.Sequential, nn.ModuleList, nn.ModuleDict):
            return self._container(child, path)
        if kind.__module__.startswith("torch.") and (found := self._constructor(child, path, hint)):
            self._note_weights(child, path)
            return found
        return [self.read(child, path)]

    def _note_weights(self, child: nn.Module, path: str) -> None:
        for name, weight in child.named_parameters(remove_duplicate=False):
            self._note_tie(weight, f"{path}.{name}")

    def _frozen_norm(self, child: Any, hint: str) -> list[Any]:
        self._definitions.use_helper("InferenceBatchNorm", NORM)
        affine = "" if child.affine else ", affine=False"
        size, eps = Literal(str(child.num_features), f"{hint}_num_features"), Literal(repr(child.eps), f"{hint}_eps")
        return ["InferenceBatchNorm(", size, ", eps=", eps, f"{affine})"]

    def _container(self, child: Any, path: str) -> list[Any]:
        kind = type(child).__name__
        parts: list[Any] = []
        names = list(child._modules)
        is_numbered = kind != "ModuleDict" and names == [str(number) for number, _ in enumerate(names)]
        for number, (name, each) in enumerate(child._modules.items()):
            made = self.parts(each, _join(path, name), f"{path.rpartition('.')[2]}_{name}")
            key = [] if is_numbered else [f"{name!r}: "]
            parts += [", " if number else "", *key, *made]
        if is_numbered:
            return [f"nn.{kind}(", *(["[", *parts, "]"] if kind == "ModuleList" else parts), ")"]
        if kind == "ModuleDict":
            return ["nn.ModuleDict({", *parts, "})"]
        if kind == "ModuleList":
            raise CaptureFault(f"{path} is a ModuleList with entries left out; capture cannot follow that.")
        self._definitions.use_import("from collections import OrderedDict")
        return ["nn.Sequential(OrderedDict({", *parts, "}))"]

    def _constructor(self, child: nn.Module, path: str, hint: str) -> list[Any] | None:
        """Return the call that makes a module of torch; None if its arguments cannot be read from it."""
        kind = type(child)
        parts: list[Any] = []
        options: dict[str, Any] = {}
        positional = True
        for parameter in inspect.signature(kind.__init__).parameters.values():
            if parameter.name in SKIPPED:
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            value = _argument(child, parameter.name)
            if value is MISSING:
                if parameter.default is parameter.empty:
                    return None
                positional = False
                continue
            options[parameter.name] = value
            if parameter.default is not parameter.empty and _is_equal(value, parameter.default):
                positional = False
                continue
            positional = positional and parameter.default is parameter.empty
            try:
                text = format_value(value, self._definitions, f"{path}.{parameter.name}")
            except CaptureFault:
                return None
            key = "" if positional else f"{parameter.name}="
            parts += [", " if parts else "", key, Literal(text, f"{hint}_{parameter.name}")]
        if not _is_made_by(child, options, self._definitions.mentioned):
            return None
        return [f"{self._definitions.refer(kind, path)}(", *parts, ")"]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{name!r}]" if not name.isdigit() else f"{path}[{name}]"


def _argument(child: nn.Module, name: str) -> Any:
    """Return the value of a constructor's argument, as the module keeps it."""
    if name == "bias" and not isinstance(child, nn.RNNBase):
        bias = child._parameters.get("in_proj_bias" if isinstance(child, nn.MultiheadAttention) else "bias", MISSING)
        return MISSING if bias is MISSING else bias is not None
    if name == "p" and isinstance(child, nn.modules.dropout._DropoutNd) and not child.training:
        return 0.0  # nothing is dropped in evaluation mode
    if name == "dropout" and not child.training and isinstance(getattr(child, name, None), float | int):
        return 0.0
    value = getattr(child, name, MISSING)
    return MISSING if isinstance(value, nn.Module | torch.Tensor | types.MethodType) else value


def _is_equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _is_made_by(child: nn.Module, options: dict[str, Any], mentioned: set[str]) -> bool:
    """True if the constructor makes the same weights and buffers, and a module that describes itself equally."""
    try:
        with torch.device("meta"):
            made = type(child)(**options)
    except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError, NotImplementedError):
        return False
    shapes = [{name: tuple(each.shape) for name, each in module.state_dict().items()} for module in (made, child)]
    compared = (vars(made).keys() | (vars(child).keys() & mentioned)) - OWN - {"p", "dropout"}
    plain = [
        {
            name: value
            for name in compared
            if isinstance(value := vars(module).get(name), bool | int | float | str | tuple)
        }
        for module in (made, child)
    ]
    return shapes[0] == shapes[1] and plain[0] == plain[1] and [*made._modules] == [*child._modules]


def _refuse_strange(module: nn.Module, path: str) -> None:
    """Refuse a module whose behaviour is not in its class."""
    if any(getattr(module, name) for name in HOOKS):
        raise CaptureFault(f"{path} has hooks, which its source does not show; remove them before it is captured.")
    if isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule):
        raise CaptureFault(f"{path} is a compiled graph without source; capture the module that it was made from.")
    if hasattr(module, "parametrizations"):
        raise CaptureFault(
            f"{path} has parametrizations; remove them with torch.nn.utils.parametrize.remove_parametrizations first."
        )


def _random_weights(weight: torch.Tensor) -> str:
    """Write random weights of the same spread."""
    values = weight.detach().float().cpu()
    if values.numel() == 0:
        return f"torch.empty({shape_text(weight.shape)})"
    first = float(values.flatten()[0])
    if math.isfinite(first) and bool((values == first).all()):
        return format_constant(torch.empty(weight.shape), first)
    spread, middle = float(values.std()) if values.numel() > 1 else 1.0, float(values.mean())
    spread = spread if math.isfinite(spread) and spread > 0 else 1.0
    scale = "" if 0.5 < spread < 2 else f" * {spread:.2g}"
    shift = f" + {middle:.2g}" if math.isfinite(middle) and abs(middle) > 3 * spread else ""
    return f"torch.randn({shape_text(weight.shape)}){scale}{shift}"
