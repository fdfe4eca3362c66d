"""The trusted side's own copy of the task: draws inputs from secret seeds and computes what should come out."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from stark_worker.candidate import forward, import_file
from stark_worker.compare import WORST_SHARE, all_finite, largest_error, spread
from stark_worker.memory import pack, structure, unpack
from stark_worker.protocol import Precision

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}

Change = Callable[[torch.Tensor], torch.Tensor]
Result = TypeVar("Result")


class TaskFault(Exception):
    """The task itself does not work; no candidate is to blame."""


@dataclass(frozen=True)
class Case:
    """Inputs nobody has seen before, and what the reference makes of them."""

    name: str
    seed: int
    inputs: list[torch.Tensor]
    expected: list[torch.Tensor]


def secret_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")


class Reference:
    """The model of a task under one random initialisation."""

    def __init__(self, source: str, precision: Precision, folder: Path) -> None:
        self.dtype = DTYPES[precision]
        path = folder / "task.py"
        path.write_text(source, encoding="utf-8")
        self._module = _of_task("The file", lambda: import_file("task", path))
        self.construct_tensors: list[torch.Tensor] = []
        construct = _of_task("get_init_inputs()", lambda: list(self._module.get_init_inputs()))
        self.construct = _of_task("get_init_inputs()", lambda: pack(construct, self.construct_tensors))
        self.construct_seed = secret_seed()
        torch.manual_seed(self.construct_seed)
        self.model = _of_task("Model", lambda: self._module.Model(*construct).to(self.dtype))
        self._exact = self._double()
        self.own_errors: list[float] = []
        self.outputs: list[torch.Tensor] = []  # without data: what forward() returns, by kind
        self.arguments = ""
        self.structure = ""
        first = self.draw("the task's own distribution")
        assert first is not None
        self.first = first

    @property
    def exact(self) -> bool:
        """Whether expected outputs could be had in double precision so far."""
        return self._exact is not None

    def draw(self, name: str, change: Change | None = None, exact: bool = True) -> Case | None:
        """One case; None when a change of the inputs led to where the reference is undefined."""
        seed = secret_seed()
        inputs = self._inputs(seed, change)
        try:
            outputs = self._run(self.model, inputs, seed)
        except TaskFault:
            if change is None:
                raise
            return None
        if change is not None and not all(map(all_finite, outputs)):
            return None
        if not self.outputs:
            self.outputs = [output.to("meta") for output in outputs]
            self.own_errors = [0.0] * len(outputs)
        return Case(name, seed, inputs, self._sharpen(inputs, outputs, seed) if exact else outputs)

    def cases(self) -> Iterator[Case]:
        """The cases a candidate has to get right before it is timed: own distribution and several others."""
        yield self.first
        for name, change in _changes():
            yield self.draw(name, change) or self._own()
        yield self._own()

    def timed_case(self) -> Case:
        """A fresh case for one timed call, with expected outputs in the task's own precision.

        Rescaling makes the values new even where ``get_inputs`` is not random.
        """
        scale = random.SystemRandom().uniform(0.9, 1.0)
        return self.draw("a timed call", lambda x: x * scale, exact=False) or self._own(exact=False)

    def _own(self, exact: bool = True) -> Case:
        case = self.draw("the task's own distribution", None, exact)
        assert case is not None
        return case

    def _inputs(self, seed: int, change: Change | None) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        tensors: list[torch.Tensor] = []
        given = _of_task("get_inputs()", lambda: list(self._module.get_inputs()))
        packed = _of_task("get_inputs()", lambda: pack(given, tensors))
        if packed != (self.arguments or packed):
            raise TaskFault("get_inputs() returns other arguments from call to call; they have to stay the same.")
        self.arguments = packed
        return [self._changed(tensor.detach(), change) for tensor in tensors]

    def _changed(self, tensor: torch.Tensor, change: Change | None) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        return (change(tensor) if change else tensor).to(self.dtype)

    def _run(self, model: Any, inputs: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
        arguments = unpack(self.arguments, [tensor.clone() for tensor in inputs])  # a forward may work in place
        result = _of_task("forward()", lambda: forward(model, arguments, seed))
        outputs: list[torch.Tensor] = []
        packed = structure(_of_task("forward()", lambda: pack(result, outputs)))
        if not outputs or '{"value"' in packed.replace('{"value": null}', ""):
            raise TaskFault("forward() has to return tensors, alone or in tuples, lists or dicts.")
        if any(output.is_complex() or output.layout != torch.strided for output in outputs):
            raise TaskFault("forward() returns complex or sparse tensors, which cannot be judged yet.")
        self.structure = self.structure or packed
        return outputs

    def _sharpen(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
        """Expected outputs in double precision where that is the same computation, the given ones otherwise."""
        if self._exact is None:
            return outputs
        doubles = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
        try:
            exact = self._run(self._exact, doubles, seed)
        except TaskFault:  # a forward that insists on its own precision
            self._exact = None
            return outputs
        return [self._better(number, own, exact[number]) for number, own in enumerate(outputs)]

    def _better(self, number: int, own: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        if not own.is_floating_point() or own.shape != exact.shape:
            return own
        error = largest_error(own, exact)
        # Far apart, the two did not compute the same: a dropout mask, for one, differs with the precision.
        limit = WORST_SHARE if self.dtype is torch.float32 else 10 * WORST_SHARE
        if error > limit * spread(own) or not torch.equal(own.isfinite(), exact.isfinite()):
            return own
        self.own_errors[number] = max(self.own_errors[number], error)
        return exact

    def _double(self) -> Any:
        try:
            return _of_task("Model", lambda: copy.deepcopy(self.model).double())
        except TaskFault:
            return None


def _changes() -> list[tuple[str, Change]]:
    """What is done to the task's own inputs, with amounts nobody can foresee."""
    draw = random.SystemRandom()
    large, small, shift = draw.uniform(2.0, 6.0), draw.uniform(0.05, 0.3), draw.uniform(0.5, 2.0)
    return [
        (f"inputs scaled by {large:.3g}", lambda x: x * large),
        (f"inputs scaled by {small:.3g}", lambda x: x * small),
        (f"inputs shifted by {shift:.3g}", lambda x: x + shift),
        ("inputs negated", lambda x: -x),
    ]


def _of_task(part: str, step: Callable[[], Result]) -> Result:
    """Run a part of the task; whatever it raises is the task's fault."""
    try:
        return step()
    except Exception as error:
        text = " ".join(str(error).split())[:500]
        raise TaskFault(f"{part} fails: {type(error).__name__}: {text}") from error
