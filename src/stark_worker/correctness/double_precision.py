"""Sharpens the expected outputs: the same model in double precision, where it can be had."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch

from stark_worker.correctness.compare import OWN_ERROR_FACTOR, Tolerance, choose_exact, mismatch
from stark_worker.correctness.model import is_out_of_memory, run_task_code
from stark_worker.correctness.nested import to_double
from stark_worker.device.arena import free_bytes
from stark_worker.protocol.errors import TaskFault

COPIES = 3  # of inputs and outputs, that a run may need memory for

Outputs = list[torch.Tensor]
Run = Callable[[Any, list[torch.Tensor], int], Outputs]  # a model on inputs, under a seed


class DoublePrecision:
    """A model in double precision, as long as it works; none if ``model`` is None."""

    def __init__(self, model: Any | None, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._is_short = device, dtype is not torch.float32
        self._model, self._has_run = None, False
        if model is not None:
            with contextlib.suppress(TaskFault):
                self._model = run_task_code("Model", lambda: copy.deepcopy(model).double())

    @property
    def works(self) -> bool:
        """True if it has worked so far."""
        return self._model is not None

    def give_up(self) -> None:
        self._model = None

    def sharpen(self, run: Run, inputs: list[torch.Tensor], outputs: Outputs, seed: int) -> tuple[Outputs, list[float]]:
        """Return the outputs in double precision where possible, and the error of the given ones."""
        exact = self._run(run, inputs, outputs, seed) or outputs
        better = [choose_exact(*pair, is_short=self._is_short) for pair in zip(outputs, exact, strict=True)]
        return [output for output, _ in better], [error for _, error in better]

    def _run(self, run: Run, inputs: list[torch.Tensor], outputs: Outputs, seed: int) -> Outputs | None:
        needed = COPIES * 8 * sum(tensor.numel() for tensor in (*inputs, *outputs))
        if self._model is None or needed > free_bytes(self._device):  # a later call may find more memory
            return None
        try:
            found = run(self._model, [to_double(tensor) for tensor in inputs], seed)
        except TaskFault as fault:
            # Either forward() insists on its own precision, or it never fits. Later a candidate may hold the memory.
            if not self._has_run or not is_out_of_memory(fault):
                self.give_up()
            return None
        self._has_run = True
        return found


def is_telling(own: torch.Tensor, exact: torch.Tensor, allowed: Tolerance) -> bool:
    """True if an output is known exactly enough to refuse others by it."""
    few = Tolerance(allowed.atol / OWN_ERROR_FACTOR, allowed.rtol / OWN_ERROR_FACTOR)
    return exact is not own and mismatch(own, exact, few) is None
