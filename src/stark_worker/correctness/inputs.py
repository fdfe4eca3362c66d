"""Which inputs a candidate is tried on.

``verified`` begins with the task's own inputs and changes them by amounts and at places nobody can foresee: statistical
answers, partial sums and passed-through inputs are right on one distribution only. ``kernelbench`` draws the same few
inputs for everybody.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import torch

KERNELBENCH_SEED = 42
KERNELBENCH_TRIALS = 5
OTHER_DISTRIBUTIONS = 4  # distributions besides the task's own, for each candidate
VALUES_PER_OUTLIER = 1_000  # one in so many
TIMED_CALL, RESCALE_RANGE = "a timed call", (0.9, 1.0)

Change = Callable[[torch.Tensor], torch.Tensor]


def secret_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")


def kernelbench_seeds() -> list[int]:
    """The seeds of its trials, drawn one by one from the one public seed."""
    generator = torch.Generator().manual_seed(KERNELBENCH_SEED)
    draws = [torch.randint(0, 2**32 - 1, (1,), generator=generator) for _ in range(KERNELBENCH_TRIALS)]
    return [int(draw) for draw in draws]


def changes() -> list[tuple[str, Change]]:
    """All that can be done to floating-point inputs, in an order and with amounts drawn anew.

    Negation is always among those that a candidate meets: tasks draw from U(0, 1), where much is close to identity.
    """
    draw = random.SystemRandom()
    large, small, shift = draw.uniform(2.0, 6.0), draw.uniform(0.05, 0.3), draw.uniform(0.5, 2.0)
    factor, height = draw.uniform(20.0, 50.0), draw.uniform(2.0, 6.0)
    found: list[tuple[str, Change]] = [
        (f"inputs scaled by {large:.3g}", lambda x: x * large),
        (f"inputs scaled by {small:.3g}", lambda x: x * small),
        (f"inputs shifted by {shift:.3g}", lambda x: x + shift),
        (f"a few inputs scaled by {factor:.3g}", lambda x: _with_outliers(x, factor)),
        (f"inputs near 0 with one spike of {height:.3g} in each row", lambda x: _with_spikes(x, height)),
        (f"channels shifted by up to {shift:.3g}", lambda x: _with_offsets(x, shift)),
    ]
    draw.shuffle(found)
    found.insert(draw.randrange(OTHER_DISTRIBUTIONS), ("inputs negated", lambda x: -x))
    return found


def rescaling(fixed: bool) -> tuple[str, Change]:
    """What makes values new and leaves their distribution almost as it is.

    Where they are fixed, each by a factor of its own: whoever knows one answer could scale it as its inputs are scaled.
    """
    if fixed:
        return TIMED_CALL, lambda x: x * torch.empty_like(x).uniform_(*RESCALE_RANGE)
    scale = random.SystemRandom().uniform(*RESCALE_RANGE)
    return TIMED_CALL, lambda x: x * scale


def _with_outliers(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    changed = tensor.clone(memory_format=torch.contiguous_format)
    if count := tensor.numel():
        places = torch.randint(count, (-(-count // VALUES_PER_OUTLIER),), device=tensor.device)
        flat = changed.view(-1)
        flat[places] = flat[places] * factor
    return changed


def _with_spikes(tensor: torch.Tensor, height: float) -> torch.Tensor:
    """One element of each row stands out: a sum that leaves some of them out misses whole spikes."""
    if tensor.ndim == 0 or tensor.numel() == 0:
        return tensor * height
    places = torch.randint(tensor.shape[-1], (*tensor.shape[:-1], 1), device=tensor.device)
    return (tensor * 0.01).scatter_(-1, places, height)


def _with_offsets(tensor: torch.Tensor, largest: float) -> torch.Tensor:
    """The second dimension is taken for the channels, the first where there is no other."""
    shape = [1] * tensor.ndim
    if tensor.ndim:
        dimension = min(1, tensor.ndim - 1)
        shape[dimension] = tensor.shape[dimension]
    offsets = torch.rand(shape, device=tensor.device, dtype=tensor.dtype) * 2.0 - 1.0
    return tensor + offsets * largest
