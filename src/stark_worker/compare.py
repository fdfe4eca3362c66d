"""Whether what a candidate computed is what the reference computes.

``verified``: the error against a double-precision reference may be a few times the reference's own rounding error, or
a small share of the spread of the output, whichever is more. ``kernelbench``: its fixed tolerances.
Integers and booleans are exact; NaN and infinities have to be where the reference has them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from stark_worker.protocol import Precision, Score

OWN_ERRORS = 4.0
WORST_SHARE = 1e-2  # of the spread: beyond it the reference's own error says nothing but that it is unstable


@dataclass(frozen=True)
class Tolerance:
    """``|got - expected| <= atol + rtol * |expected|``."""

    atol: float
    rtol: float


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether there is no NaN and no infinity; either shows in the smallest or the largest value."""
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return True
    return all(bool(bound.isfinite()) for bound in tensor.aminmax())


def spread(tensor: torch.Tensor) -> float:
    """The standard deviation of the finite values; 0 where there are fewer than two."""
    values = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    if not all_finite(values):
        values = values[values.isfinite()]
    return float(values.std()) if values.numel() > 1 else 0.0


def largest_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference between finite values."""
    if got.numel() == 0:
        return 0.0
    return float((got.double() - expected.double()).abs().nan_to_num(0.0, 0.0, 0.0).max())


def tolerance(expected: torch.Tensor, own_error: float, precision: Precision, score: Score) -> Tolerance:
    """How far from ``expected`` a value may be."""
    if not expected.is_floating_point():
        return Tolerance(0.0, 0.0)
    share = 1e-4 if precision is Precision.FP32 else 1e-2
    if score is Score.KERNELBENCH:
        return Tolerance(share, share)
    width = spread(expected)
    return Tolerance(max(share * width, min(OWN_ERRORS * own_error, WORST_SHARE * width)), share)


def mismatch(got: torch.Tensor, expected: torch.Tensor, allowed: Tolerance) -> str | None:
    """None when the two agree, otherwise a few lines on how they differ."""
    if expected.is_floating_point():
        got = got.to(expected.dtype)
        if got.numel() == 0 or bool((got - expected).abs_().max() <= allowed.atol):  # the common case, and cheap
            return None
        wrong = ~torch.isclose(got, expected, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True)
    else:
        wrong = got != expected
    places = wrong.nonzero()
    return _tell(got, expected, places, allowed) if len(places) else None


def _tell(got: torch.Tensor, expected: torch.Tensor, places: torch.Tensor, allowed: Tolerance) -> str:
    share, error = len(places) / got.numel(), largest_error(got, expected)
    unwritten = int(got.isnan().sum()) if got.is_floating_point() else 0
    lines = [
        f"{len(places)} of {got.numel()} values ({share:.2%}) are wrong; largest error {error:.6g}"
        f" (allowed: {allowed.atol:.3g} + {allowed.rtol:.3g} * |expected|)"
    ]
    if unwritten:
        lines.append(f"{unwritten} values are NaN or were never written")
    for place in places[:5].tolist():
        index = tuple(place)
        lines.append(f"  at {place}: got {_number(got[index])}, expected {_number(expected[index])}")
    return "\n".join(lines)


def _number(value: torch.Tensor) -> str:
    number = value.item()
    return f"{number:.7g}" if isinstance(number, float) and math.isfinite(number) else str(number)
