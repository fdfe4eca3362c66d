"""Draws and changes the inputs that a candidate is tried on.

``verified`` starts from the task's own inputs and changes them by random amounts at random places. Statistical answers,
partial sums and passed-through inputs are right on one distribution only. ``kernelbench`` draws the same few inputs for
every candidate.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import torch

KERNELBENCH_SEED = 42
KERNELBENCH_TRIALS = 5
OTHER_DISTRIBUTIONS = 4  # for each candidate, in addition to the task's own
VALUES_PER_OUTLIER = 1_000
TIMED_CALL, RESCALE_RANGE = "a timed call", (0.9, 1.0)

Change = Callable[[torch.Tensor], torch.Tensor]


def secret_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")


def kernelbench_seeds() -> list[int]:
    """Return the seeds of KernelBench's trials, drawn one by one from its public seed."""
    generator = torch.Generator().manual_seed(KERNELBENCH_SEED)
    draws = [torch.randint(0, 2**32 - 1, (1,), generator=generator) for _ in range(KERNELBENCH_TRIALS)]
    return [int(draw) for draw in draws]


def changes() -> list[tuple[str, Change]]:
    """Return all changes of floating-point inputs, in random order and with random amounts.

    Negation is always among the first: tasks draw from U(0, 1), where many functions are close to identity.
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
    """Return a change that makes new values and almost keeps their distribution.

    Fixed inputs get one factor for each value: a candidate could scale a stored answer by a common factor.
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
    """Put one spike into each row: a sum that skips elements misses whole spikes."""
    if tensor.ndim == 0 or tensor.numel() == 0:
        return tensor * height
    places = torch.randint(tensor.shape[-1], (*tensor.shape[:-1], 1), device=tensor.device)
    return (tensor * 0.01).scatter_(-1, places, height)


def _with_offsets(tensor: torch.Tensor, largest: float) -> torch.Tensor:
    """Shift each channel; the channels are the second dimension, or the first if it is the only one."""
    shape = [1] * tensor.ndim
    if tensor.ndim:
        dimension = min(1, tensor.ndim - 1)
        shape[dimension] = tensor.shape[dimension]
    offsets = torch.rand(shape, device=tensor.device, dtype=tensor.dtype) * 2.0 - 1.0
    return tensor + offsets * largest
