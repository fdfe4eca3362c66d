"""Writes ``get_inputs()`` from example inputs: numbers are drawn, masks and positions stay as they are."""

from __future__ import annotations

import torch

from stark_worker.capture.source.definitions import Definitions
from stark_worker.capture.source.literals import format_tensor, shape_text

FEW_VALUES = 2  # a tensor of so few different numbers is a mask


def format_input(tensor: torch.Tensor, definitions: Definitions, name: str) -> str:
    """Write an expression that draws an input like this one."""
    shape = shape_text(tensor.shape)
    if tensor.numel() == 0 or tensor.is_complex() or tensor.dtype is torch.bool:
        return format_tensor(tensor, definitions, name)
    if not tensor.is_floating_point():
        return _format_integers(tensor, definitions, name)
    values = tensor.detach().double()
    if not bool(values.isfinite().all()) or (
        tensor.numel() > FEW_VALUES and int(torch.unique(values).numel()) <= FEW_VALUES
    ):
        return format_tensor(tensor.float(), definitions, name)
    low, spread, middle = float(values.min()), float(values.std(correction=0)), float(values.mean())
    kind = f", dtype={tensor.dtype!r}" if tensor.dtype is torch.float64 else ""
    if low >= 0 and tensor.numel() > 8:
        high = float(values.max())
        return f"torch.rand({shape}{kind})" + ("" if 0.9 < high <= 1 else f" * {high:.3g}")
    scale = "" if 0.5 < spread < 2 or spread == 0 else f" * {spread:.2g}"
    shift = f" + {middle:.2g}" if abs(middle) > max(spread, 0.5) else ""
    return f"torch.randn({shape}{kind}){scale}{shift}"


def _format_integers(tensor: torch.Tensor, definitions: Definitions, name: str) -> str:
    """Draw integers from the range of the example; keep a mask, a range or a constant."""
    values = tensor.detach().cpu()
    low, high = int(values.min()), int(values.max())
    steps = values.diff(dim=-1) if values.ndim and values.shape[-1] > 1 else None
    is_sorted = steps is not None and bool((steps >= 0).all())
    if high - low < FEW_VALUES or (is_sorted and values.shape[-1] > 2):
        return format_tensor(tensor, definitions, name)
    kind = "" if tensor.dtype is torch.int64 else f", dtype={tensor.dtype!r}"
    sizes = (
        f"({shape_text(tensor.shape)},)"
        if tensor.ndim == 1
        else f"({shape_text(tensor.shape)})"
        if tensor.ndim
        else "()"
    )
    return f"torch.randint({low}, {high + 1}, {sizes}{kind})"
