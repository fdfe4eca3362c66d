"""Calls that are like one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C._dynamo import guards

from .facts import DEVICE, DTYPES
from .guards import _why_not_now
from .sources import Tensors

ALIGNMENT = 16  # bytes: kernels load several numbers at a time


class _Call:
    """A call for which all guards held. torch's own guards of compiled code recognise another like it."""

    def __init__(self, tensors: Tensors, weights: Tensors, stride: tuple[int, ...]) -> None:
        shapes = [list(each.shape) for each in (*tensors, *weights)]
        strides = [list(each.stride()) for each in (*tensors, *weights)]
        own = guards.TensorGuards(*tensors, *weights, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
        self.stride, self._weights, self._check = stride, weights, own.check
        self._check_globals = guards.GlobalStateGuard().check
        self._stream = _find_stream()

    def is_like(self, args: Sequence[Any]) -> bool:
        """True if inputs, weights and torch's state are the same but for the values of tensors."""
        for tensor in args:
            if type(tensor) is not torch.Tensor or tensor.is_nested:  # the check below would end the process
                return False
        if not (len(args) == len(DTYPES) and self._check_globals() and self._check(*args, *self._weights)):
            return False
        for tensor in args:
            if tensor.data_ptr() % ALIGNMENT:
                return False
        return _why_not_now() is None and _find_stream() == self._stream


def _find_stream() -> tuple[int, int] | None:
    """Return the current device and stream of a GPU; nothing of a stream that is captured."""
    if DEVICE == "cpu" or torch.cuda.is_current_stream_capturing():
        return None
    device = torch._C._cuda_getDevice()
    return device, torch._C._cuda_getCurrentRawStream(device)
