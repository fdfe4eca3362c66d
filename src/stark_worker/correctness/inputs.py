"""Draws and changes the inputs that a candidate is tried on.

``verified`` starts from the task's own inputs and changes them by random amounts at random places. Statistical answers,
partial sums and passed-through inputs are right on one distribution only. A few replaced values show what a candidate
does not read, such as a mask that is the same in every call. ``kernelbench`` draws the same few inputs for every
candidate.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Set
from dataclasses import dataclass

import torch

from stark_worker.correctness.compare import all_finite, spread
from stark_worker.device.arena import bits

KERNELBENCH_SEED = 42
KERNELBENCH_TRIALS = 5
OTHER_DISTRIBUTIONS = 6  # for each candidate, in addition to the task's own
OTHER_SHARE, SIGNED_SHARE = 0.15, 0.6  # of timed calls: with any change, and up to which with random signs
VALUES_PER_OUTLIER = 1_000
VALUES_PER_REPLACED, INTEGERS_PER_REPLACED = 1_000, 100  # at least
SEARCHED = 1_000  # places, for another integer
TIMED_CALL, RESCALE_RANGE = "a timed call", (0.9, 1.0)
RANDOM_SIGNS, FAR, FEW = "inputs with random signs", "inputs shifted, in spreads, by", "a few values replaced"
# The kinds of values that are replaced. A reference may fail on one of them alone.
NUMBERS, INTEGERS, ONE_INTEGER = "a few numbers replaced", "a few fixed integers exchanged", "fixed integers moved by 1"
FEW_KINDS = (NUMBERS, INTEGERS, ONE_INTEGER)
# At these distances the exponential overflows, and the difference of large squares has no correct digit. Honest sums of
# 16,384 terms lose this share of the distance.
FAR_SPREADS, FAR_LOSS = (500.0, 2_000.0), 256 * 2.0**-24


@dataclass(frozen=True)
class Change:
    """A change of inputs. ``apply`` changes floating-point ones. Of the kinds in ``few``, some values are replaced too.

    ``has_outliers`` is True if a few values become far larger than the rest.
    """

    kind: str
    apply: Callable[[torch.Tensor], torch.Tensor]
    amount: float | None = None
    has_outliers: bool = False
    few: Set[str] = frozenset()

    @property
    def name(self) -> str:
        name = self.kind if self.amount is None else f"{self.kind} {self.amount:.3g}"
        return f"{name}, and {FEW}" if self.is_mixed else name

    @property
    def is_far(self) -> bool:
        """True if the reference has to show that it is exact enough on such inputs."""
        return self.kind == FAR

    @property
    def is_mixed(self) -> bool:
        """True if values are replaced on top of another change."""
        return bool(self.few) and self.kind not in (FEW, *FEW_KINDS)

    @property
    def loss(self) -> float:
        """The share of the outputs' spread that honest arithmetic may lose on such inputs, beyond the usual one."""
        return FAR_LOSS * self.amount if self.is_far and self.amount else 0.0


def secret_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")


def kernelbench_seeds() -> list[int]:
    """Return the seeds of KernelBench's trials, drawn one by one from its public seed."""
    generator = torch.Generator().manual_seed(KERNELBENCH_SEED)
    draws = [torch.randint(0, 2**32 - 1, (1,), generator=generator) for _ in range(KERNELBENCH_TRIALS)]
    return [int(draw) for draw in draws]


def changes(amount_within: Callable[[float, float], float] | None = None, few: Set[str] = frozenset()) -> list[Change]:
    """Return all changes of inputs, in random order and with random amounts; ``few`` are the kinds to replace.

    Four are always among the first. Tasks draw from U(0, 1), where many functions are close to identity: negation
    shows it. Sums of positive products hide the rounding of each product: random signs show it. Overflow and
    cancellation show only far from zero. Values that are never read show only if they alone change.
    """
    chance = random.SystemRandom()
    within = amount_within or chance.uniform
    large, small, shift = within(2.0, 6.0), within(0.05, 0.3), within(0.5, 2.0)
    factor, height, far = within(20.0, 50.0), within(2.0, 6.0), within(*FAR_SPREADS)
    always = [
        Change("inputs negated", torch.neg),
        Change(RANDOM_SIGNS, _with_signs),
        Change(FAR, lambda x: x + far * spread(x), far),
    ]
    if few:
        always.append(Change(FEW, _unchanged, few=few))
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


def few_changes() -> list[Change]:
    """Return a change for each kind of values to replace."""
    return [Change(kind, _unchanged, few={kind}) for kind in FEW_KINDS]


def few_kind(tensor: torch.Tensor, is_fixed: bool) -> str | None:
    """Return as which kind the values of an input are replaced; None for integers, which differ from call to call."""
    if tensor.numel() == 0 or not (is_fixed or tensor.is_floating_point() or tensor.is_complex()):
        return None
    if tensor.is_floating_point() or tensor.is_complex():
        return NUMBERS
    has_others = tensor.dtype is torch.bool or bool((tensor != tensor[(0,) * tensor.ndim]).any())
    return INTEGERS if has_others else ONE_INTEGER


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


def replace_some(tensor: torch.Tensor) -> torch.Tensor:
    """Replace a few values, often only one: a candidate that looks at a sample must not see it.

    Numbers get others between the smallest and the largest, booleans are negated, and integers exchanged. If all
    integers are equal, some move by 1 towards zero, or from zero to 1.
    """
    if tensor.is_complex():
        return torch.view_as_complex(replace_some(torch.view_as_real(tensor)))
    flat = tensor.flatten().clone()
    per_replaced = VALUES_PER_REPLACED if tensor.is_floating_point() else INTEGERS_PER_REPLACED
    most = max(flat.numel() / per_replaced, 1.0)
    count = round(math.exp(random.SystemRandom().uniform(0.0, math.log(most))))
    places = torch.randint(flat.numel(), (count,), device=flat.device)
    if tensor.is_floating_point():
        flat[places] = _draw_between(flat, count)
    elif tensor.dtype is torch.bool:
        flat[places] = ~flat[places]
    else:
        _exchange(bits(flat), places)  # torch indexes few kinds of unsigned integers
    return flat.view(tensor.shape)


def _draw_between(flat: torch.Tensor, count: int) -> torch.Tensor:
    """Draw numbers between the smallest and the largest finite value, above it if all are equal."""
    finite = flat if all_finite(flat) else flat[flat.isfinite()]
    low, high = map(float, finite.aminmax()) if finite.numel() else (0.0, 1.0)
    return low + torch.rand(count, device=flat.device, dtype=flat.dtype) * ((high - low) or 1.0)


def _exchange(flat: torch.Tensor, places: torch.Tensor) -> None:
    """Exchange the integers at these places and at one more, so that they do not all have one value."""
    first = int(flat[places[0]])
    others = _find_others(flat, first)
    if others.numel() == 0:
        flat[places] = first - 1 if first > 0 else first + 1
        return
    other = others[torch.randint(others.numel(), (1,), device=flat.device)]
    places = torch.unique(torch.cat([places, other]))  # one way around these, so that a permutation remains one
    flat[places] = flat[places.roll(1)]


def _find_others(flat: torch.Tensor, value: int) -> torch.Tensor:
    """Return some places of other values, or all if they are rare: to search everywhere takes long."""
    some = torch.randint(flat.numel(), (SEARCHED,), device=flat.device)
    found = some[flat[some] != value]
    return found if found.numel() else (flat != value).nonzero()[:, 0]


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


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
