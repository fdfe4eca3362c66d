"""Results: their memory, their layout, and their comparison."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import torch

from .facts import DEVICE, IS_RANDOM
from .weights import _is_inexact

ROUGHLY = 0.03  # of the largest value, in the comparison at the first call


def _count_owners(tensor: torch.Tensor) -> tuple[int, ...]:
    """Count all that hold a tensor or its memory."""
    uses = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return sys.getrefcount(tensor), tensor._use_count(), uses


def _owners_of_new() -> tuple[int, ...]:
    results = [torch.empty(1)]
    return _count_owners(results[0])


OWNERS = _owners_of_new()


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _copy(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _is_close(result: torch.Tensor, right: torch.Tensor) -> bool:
    if result.shape != right.shape or result.dtype != right.dtype:
        return False
    if not right.numel() or not (_is_inexact(right) and bool(right.isfinite().all())):
        return True  # an integer may be another one after other rounding
    return bool(((result - right).abs().max() <= ROUGHLY * right.abs().max() + 1e-6).item())


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[Callable[[], None]]:
    """Return a function that sets the generators back to where they are now, if the model draws random numbers."""
    states = (torch.get_rng_state(), torch.cuda.get_rng_state_all() if DEVICE == "cuda" else []) if IS_RANDOM else None

    def again() -> None:
        if states is not None:
            torch.set_rng_state(states[0])
            if DEVICE == "cuda":
                torch.cuda.set_rng_state_all(states[1])

    yield again
