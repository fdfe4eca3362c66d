"""Finds out if a model draws random numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stark_worker.correctness.compare import equal_up_to_rounding, same_bits

Outputs = list[torch.Tensor]


def depends_on_seed(run: Callable[[int], Outputs], outputs: Outputs, seed: int) -> bool:
    """True if another seed changes more than rounding can, or if all repetitions show that it changes bits.

    On a GPU sums may differ from run to run under one seed. ``outputs`` are those of the first run.
    """
    others = run(seed + 1)
    if not all(map(equal_up_to_rounding, outputs, others)):
        return True
    if all(map(same_bits, outputs, others)):
        return False
    return all(map(same_bits, outputs, run(seed))) and all(map(same_bits, others, run(seed + 1)))
