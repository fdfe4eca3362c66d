"""Makes the task of a live module: reads it, writes its source, and checks that both compute the same."""

from __future__ import annotations

import ast
import copy
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stark_worker.capture.calls import Call, flatten, leaf_names, write_forward
from stark_worker.capture.examples import format_input
from stark_worker.capture.faults import CaptureFault, run_user_code
from stark_worker.capture.modules import ModuleReader, _refuse_strange
from stark_worker.capture.source.arguments import watch_arguments
from stark_worker.capture.source.definitions import Definitions, Settled
from stark_worker.capture.source.lookup import is_installed
from stark_worker.capture.structure import Groups, Made
from stark_worker.correctness.model import import_file
from stark_worker.protocol.request import Precision

PRECISIONS = {torch.float32: Precision.FP32, torch.bfloat16: Precision.BF16, torch.float16: Precision.FP16}
ALLOWED = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}  # of the largest value
SEED = 20_260_101


@dataclass(frozen=True)
class Captured:
    """A captured module: the source of its task, and the form of the call that it was captured with."""

    name: str
    source: str
    precision: Precision
    call: Call


def capture_module(module: nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Captured:
    """Return the task of a live module and example inputs; raise ``CaptureFault`` if it cannot be captured."""
    module, kwargs = getattr(module, "_orig_mod", module), kwargs or {}
    if not isinstance(module, nn.Module):
        raise CaptureFault(f"a {type(module).__name__} is no nn.Module.")
    _refuse_strange(module, "the module")
    if "forward" in vars(module):
        raise CaptureFault("forward() was set on the module itself, past its class; capture cannot follow that.")
    tensors: list[torch.Tensor] = []
    arguments = Call.bind(module.forward, args, kwargs, tensors)
    if not tensors:
        raise CaptureFault("no input is a tensor.")
    outputs: list[torch.Tensor] = []
    with watch_arguments() as settled:
        result = flatten(run_once(module, args, kwargs), outputs, "the result")
    if not outputs:
        raise CaptureFault("forward() returns no tensor.")
    call = Call(arguments, result)
    source = _Writer(module, call, settled).write(tensors)
    captured = Captured(type(module).__name__, source, _precision(module, tensors), call)
    _check(captured, module, tensors, outputs)
    return captured


def run_once(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a copy of the module, so that its state and its inputs stay."""
    given = copy.deepcopy((list(args), dict(kwargs)))
    try:
        running = copy.deepcopy(module)
    except (RuntimeError, TypeError) as error:
        raise CaptureFault(f"the module cannot be copied: {error}") from error
    with torch.no_grad(), torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(SEED)
        return running(*given[0], **given[1])


class _Writer:
    """Writes the source of one task."""

    def __init__(self, module: nn.Module, call: Call, settled: Settled) -> None:
        self._module, self._call = module, call
        instances: dict[type, list[nn.Module]] = defaultdict(list)
        for each in module.modules():
            instances[type(each)].append(each)
        opened = {kind.__module__.partition(".")[0] for kind in instances} - {"torch"}
        bases = {base for kind in instances for base in kind.__mro__ if issubclass(base, nn.Module)}
        for base in bases - instances.keys():  # their methods see the instances of all subclasses
            instances[base] = [each for each in module.modules() if isinstance(each, base)]
        self._definitions = Definitions(frozenset(opened), instances, settled)
        self._kinds = [kind for kind in dict.fromkeys(map(type, module.modules())) if not _is_native(kind)]

    def write(self, tensors: Sequence[torch.Tensor]) -> str:
        """Return the source."""
        definitions, root = self._definitions, type(self._module)
        wrapped = not self._call.is_plain(self._module.forward) or _is_native(root)
        for kind in self._kinds:
            self._define(kind, "Model" if kind is root and not wrapped else "")
        made, reader = self._read()
        groups = Groups(made)
        definitions.texts()
        self._add_constructors(groups, wrapped, reader.ties)
        drawn = [
            format_input(each, definitions, name) for each, name in zip(tensors, leaf_names(self._call), strict=True)
        ]
        body = "\n\n\n".join([*definitions.texts(), _input_functions(drawn)])
        note = f'"""{root.__name__} of {root.__module__}, captured with random weights."""'
        return f"{note}\n\nfrom __future__ import annotations\n\n{definitions.imports()}\n\n\n{body}\n"

    def _define(self, kind: type, name: str) -> None:
        try:
            self._definitions.define(kind, name=name)
        except CaptureFault:
            if not is_installed(kind.__module__):
                raise

    def _read(self) -> tuple[Made, ModuleReader]:
        """Read the module until no attribute's value names another method."""
        while True:
            self._definitions.complete()
            known = len(self._definitions.mentioned)
            reader = ModuleReader(self._definitions)
            made = reader.read(self._module)
            self._definitions.complete()
            if len(self._definitions.mentioned) == known:
                return made, reader

    def _add_constructors(self, groups: Groups, wrapped: bool, ties: Sequence[tuple[str, str]]) -> None:
        """Give each class the constructor of its first group, and each further group a subclass."""
        definitions = self._definitions
        used: set[type] = set()
        root_group = groups.group(groups.root)
        for group in groups.groups.values():
            kind = group.members[0].kind
            is_root, owns = group is root_group, kind in definitions.classes and kind not in used
            owns = owns and not (is_root and (wrapped or len(root_group.members) > 1))
            base = definitions.refer(kind, kind.__name__)
            group.name = "Model" if is_root else base if owns else definitions.unique(kind.__name__)
            if owns:
                used.add(kind)
                definitions.finish_class(kind, self._init(groups, group, kind, ties if is_root else ()))
        for group in groups.groups.values():
            kind = group.members[0].kind
            base = definitions.refer(kind, kind.__name__)
            if group.name != base:
                is_root = group is root_group
                body = [self._init(groups, group, kind, ties if is_root else ())]
                body += [self._forward()] if is_root and wrapped else [self._plain_forward()] if is_root else []
                definitions.add_subclass(group.name, base, body)
        for kind in definitions.classes.keys() - used:
            definitions.finish_class(kind, None)

    def _init(self, groups: Groups, group: Any, kind: type, ties: Sequence[tuple[str, str]]) -> ast.stmt:
        parameters = dict.fromkeys(name for _, name in groups.parameters(group))
        first = (
            "super().__init__()"
            if kind.__bases__ == (nn.Module,) and group.name == self._definitions.refer(kind, "")
            else "nn.Module.__init__(self)"
        )
        lines = [first, *groups.lines(group), *(f"{second} = {original}" for second, original in ties)]
        text = f"def __init__({', '.join(['self', *parameters])}):\n" + "\n".join(f"    {line}" for line in lines)
        return ast.parse(text).body[0]

    def _forward(self) -> ast.stmt:
        return ast.parse(
            write_forward(self._call, self._module.forward, leaf_names(self._call), self._definitions)
        ).body[0]

    def _plain_forward(self) -> ast.stmt:
        names = ", ".join(leaf_names(self._call))
        return ast.parse(f"def forward(self, {names}):\n    return super().forward({names})").body[0]


def _is_native(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"


def _input_functions(drawn: Sequence[str]) -> str:
    lines = "\n".join(f"        {each}," for each in drawn)
    return f"def get_inputs():\n    return [\n{lines}\n    ]\n\n\ndef get_init_inputs():\n    return []"


def _precision(module: nn.Module, tensors: Sequence[torch.Tensor]) -> Precision:
    """Return the type of the weights, or of the inputs of a module without weights."""
    found = [each.dtype for each in (*module.parameters(), *tensors) if each.is_floating_point()]
    dtype = found[0] if found else torch.float32
    if dtype not in PRECISIONS:
        raise CaptureFault(f"the weights are {dtype}; a kernel is searched for float32, bfloat16 or float16.")
    return PRECISIONS[dtype]


def _check(
    captured: Captured, module: nn.Module, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> None:
    """Compare the task's model, with the live weights, with the module; refuse a task that computes something else."""
    result, drawn = run_user_code(
        "the task that was written does not run", lambda: _run_task(captured.source, module, tensors)
    )
    found: list[torch.Tensor] = []
    flatten(result, found, "the result")
    if len(found) != len(outputs) or not all(map(_is_close, found, outputs)):
        raise CaptureFault("the task that was written computes something else; its source does not show all of it.")
    if [each.shape for each in drawn] != [each.shape for each in tensors]:
        raise CaptureFault("the inputs that were written have other shapes.")


def _run_task(source: str, module: nn.Module, tensors: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    """Return the result of the task's model with the live weights, and inputs that the task draws."""
    device = tensors[0].device
    floats = [each.dtype for each in (*module.parameters(), *tensors) if each.is_floating_point()]
    with tempfile.TemporaryDirectory(prefix="stark-capture-") as folder:
        file = Path(folder) / "task.py"
        file.write_text(source, encoding="utf-8")
        task = import_file("stark_captured_task", file)
        model = task.Model(*task.get_init_inputs()).to(device, floats[0] if floats else None)
        model.load_state_dict(module.state_dict())
        with torch.no_grad(), torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(SEED)
            result = model(*copy.deepcopy(list(tensors)))
            return result, [each.to(device) for each in task.get_inputs()]


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    size = float(other.float().abs().nan_to_num(0.0, 0.0, 0.0).max()) if other.numel() else 0.0
    return torch.allclose(
        one.float(), other.float(), rtol=0, atol=ALLOWED.get(one.dtype, 1e-3) * max(size, 1e-6), equal_nan=True
    )
