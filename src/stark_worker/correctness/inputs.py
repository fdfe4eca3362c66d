"""Draws and changes the inputs that a candidate is tried on.

``verified`` starts from the task's own inputs and changes them by random amounts at random places. Statistical answers,
partial sums and passed-through inputs are right on one distribution only. ``kernelbench`` draws the same few inputs for
every candidate.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

KERNELBENCH_SEED = 42
KERNELBENCH_TRIALS = 5
OTHER_DISTRIBUTIONS = 5  # for each candidate, in addition to the task's own
OTHER_SHARE, SIGNED_SHARE = 0.15, 0.6  # of timed calls: with any change, and up to which with random signs
VALUES_PER_OUTLIER, VALUES_PER_EXCHANGE = 1_000, 100
TIMED_CALL, RESCALE_RANGE = "a timed call", (0.9, 1.0)
RANDOM_SIGNS, EXCHANGED = "inputs with random signs", "some fixed integers exchanged"


@dataclass(frozen=True)
class Change:
    """A change of inputs. It applies to floating-point ones, except ``EXCHANGED``, which applies to fixed integers.

    ``has_outliers`` is True if a few values become far larger than the rest.
    """

    kind: str
    apply: Callable[[torch.Tensor], torch.Tensor]
    amount: float | None = None
    has_outliers: bool = False

    @property
    def name(self) -> str:
        return self.kind if self.amount is None else f"{self.kind} {self.amount:.3g}"


def secret_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")


def kernelbench_seeds() -> list[int]:
    """Return the seeds of KernelBench's trials, drawn one by one from its public seed."""
    generator = torch.Generator().manual_seed(KERNELBENCH_SEED)
    draws = [torch.randint(0, 2**32 - 1, (1,), generator=generator) for _ in range(KERNELBENCH_TRIALS)]
    return [int(draw) for draw in draws]


def changes(amount_within: Callable[[float, float], float] | None = None) -> list[Change]:
    """Return all changes of inputs, in random order and with random amounts.

    Three are always among the first. Tasks draw from U(0, 1), where many functions are close to identity: negation
    shows it. Sums of positive products hide the rounding of each product: random signs show it. A mask that is the same
    in every call could be left unread: exchanged values show it.
    """
    chance = random.SystemRandom()
    within = amount_within or chance.uniform
    large, small, shift = within(2.0, 6.0), within(0.05, 0.3), within(0.5, 2.0)
    factor, height = within(20.0, 50.0), within(2.0, 6.0)
    always = [Change("inputs negated", torch.neg), Change(RANDOM_SIGNS, _with_signs), Change(EXCHANGED, exchange_some)]
    others = [
        Change("inputs scaled up by", lambda x: x * large, large),
        Change("inputs scaled down by", lambda x: x * small, small),
        Change("inputs shifted by", lambda x: x + shift, shift),
        Change("a few inputs scaled by", lambda x: _with_outliers(x, factor), factor, True),
        Change("inputs near 0, in each row one spike of", lambda x: _with_spikes(x, height), height, True),
        Change("channels shifted by up to", lambda x: _with_offsets(x, shift), shift),
    ]
    chance.shuffle(others)
    first = always + others[: OTHER_DISTRIBUTIONS - len(always)]
    chance.shuffle(first)
    return first + others[OTHER_DISTRIBUTIONS - len(always) :]


def rescaling(fixed: bool) -> Change:
    """Return a change that makes new values and almost keeps their distribution.

    Fixed inputs get one factor for each value: a candidate could scale a stored answer by a common factor.
    """
    if fixed:
        return Change(TIMED_CALL, lambda x: x * torch.empty_like(x).uniform_(*RESCALE_RANGE))
    scale = random.SystemRandom().uniform(*RESCALE_RANGE)
    return Change(TIMED_CALL, lambda x: x * scale)


def choose_timed(usable: list[Change], fixed: bool) -> Change:
    """Choose a change for a timed call, mostly random signs or a mere rescaling.

    The median then depends on no other change, and on no distribution that a candidate can recognise, such as numbers
    of one sign. A candidate has to be right on all of them.
    """
    chance = random.SystemRandom()
    wanted = chance.random()
    if wanted < OTHER_SHARE and usable:
        return chance.choice(usable)
    signs = [change for change in usable if change.kind == RANDOM_SIGNS]
    return signs[0] if wanted < SIGNED_SHARE and signs else rescaling(fixed)


def exchange_some(tensor: torch.Tensor) -> torch.Tensor:
    """Exchange some values of a tensor with others."""
    count, flat = tensor.numel(), tensor.flatten().clone()
    if count < 2:
        return tensor
    here = torch.randint(count, (max(count // VALUES_PER_EXCHANGE, 1),), device=tensor.device)
    there = (here + torch.randint(1, count, here.shape, device=tensor.device)) % count
    flat[here], flat[there] = flat[there], flat[here]
    return flat.view(tensor.shape)


def _with_signs(tensor: torch.Tensor) -> torch.Tensor:
    """Negate about half of the values, the first one always."""
    signs = torch.empty_like(tensor).bernoulli_().mul_(2.0).sub_(1.0)
    if signs.numel():
        signs[(0,) * signs.ndim] = -1.0
    return signs.mul_(tensor)


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
