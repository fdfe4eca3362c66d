"""What rounding alone decides.

Which of two nearly equal scores is the larger, honest kernels can see differently: one that multiplies and adds in one
step rounds once where the reference rounds twice. Such an integer is as right as the reference's own. So is the one
that double precision gives, which is asked first.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from stark_worker.compare import bits, pieces
from stark_worker.draws import secret_seed

NUDGES = 16  # nearly equal values change places in some of them; that all go one way is one in 65,536
# Units of the last place, at most. A long sum is off by many of them, and by the same ones again however its terms are
# nudged, so that a nudge has to be larger. Of short formats a sum is made in single precision and rounded once.
NUDGE, NUDGE_SHORT = 32.0, 2.0


def keys() -> Iterator[int]:
    """What decides each time which values go up and which go down."""
    return ((secret_seed() << 31) | secret_seed() | 1 for _ in range(NUDGES))


def nudged(tensor: torch.Tensor, key: int) -> torch.Tensor:
    """A copy whose values are off by rounding. By how much depends on the value alone, so that equal ones stay equal:
    which of those is meant, rounding does not decide.
    """
    copied = tensor.clone()
    if tensor.is_floating_point():
        share = nudge(tensor.dtype)
        for _, piece in pieces(copied):
            piece.mul_(_noise(piece, key).mul_(share).add_(1.0))
    return copied


def nudge(dtype: torch.dtype) -> float:
    """By which share of itself a value is off at most."""
    kind = torch.finfo(dtype)
    return (NUDGE if kind.bits >= 32 else NUDGE_SHORT) * kind.eps


def _noise(values: torch.Tensor, key: int) -> torch.Tensor:
    """Between -1 and 1."""
    mixed = bits(values).to(torch.int64, copy=True).mul_(key).bitwise_right_shift_(32).bitwise_and_(0xFFFF)
    return mixed.to(torch.float64).div_(0x7FFF + 0.5).sub_(1.0)
