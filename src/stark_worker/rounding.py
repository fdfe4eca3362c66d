"""What rounding alone decides.

Which of two nearly equal scores is the larger, honest kernels can see differently: one that multiplies and adds in one
step rounds once where the reference rounds twice. Such an integer is as right as the reference's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from stark_worker.compare import bits, pieces
from stark_worker.draws import secret_seed

NUDGES = 16  # nearly equal values change places in some of them; that all go one way is one in 65,536
NUDGE = 2.0  # units of the last place, at most


def keys() -> Iterator[int]:
    """What decides each time which values go up and which go down."""
    return ((secret_seed() << 31) | secret_seed() | 1 for _ in range(NUDGES))


def nudged(tensor: torch.Tensor, key: int) -> torch.Tensor:
    """A copy whose values are off by rounding. By how much depends on the value alone, so that equal ones stay equal:
    which of those is meant, rounding does not decide.
    """
    copied = tensor.clone()
    if tensor.is_floating_point():
        for _, piece in pieces(copied):
            piece.mul_(_noise(piece, key).mul_(NUDGE * torch.finfo(piece.dtype).eps).add_(1.0))
    return copied


def _noise(values: torch.Tensor, key: int) -> torch.Tensor:
    """Between -1 and 1."""
    mixed = bits(values).to(torch.int64, copy=True).mul_(key).bitwise_right_shift_(32).bitwise_and_(0xFFFF)
    return mixed.to(torch.float64).div_(0x7FFF + 0.5).sub_(1.0)
