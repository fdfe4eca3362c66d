"""Directions: each attempt from one base is asked to take another one."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from stark.agents.prompts import STRATEGIES
from stark_worker.protocol.request import Target

_ALGEBRA = "shorten the algebra: cancel, reorder, merge or precompute terms, so that less is computed and moved"
_FUSION = "fuse the whole chain into one kernel or few, so that intermediate results never reach main memory"
_LAYOUT = "choose the memory layout: wide aligned loads and stores, no copy or transposition, tiles that stay in cache"
_LIBRARIES = (
    "let a library compute the products or convolutions on the right unit, with the rest fused into its epilogue"
)
_DESIGNS = {
    Target.CUDA: (
        _ALGEBRA,
        _FUSION,
        _LAYOUT,
        _LIBRARIES,
        "overlap copies and arithmetic: asynchronous copies into several stages, persistent blocks, specialised warps",
    ),
    Target.TRITON: (
        _ALGEBRA,
        _FUSION,
        _LAYOUT,
        _LIBRARIES,
        "give each program more work: larger blocks, several stages, a persistent loop over tiles",
    ),
    Target.CPU: (
        _ALGEBRA,
        _FUSION,
        _LAYOUT,
        _LIBRARIES,
        "use every core and its widest vectors: balanced threads, independent accumulators, no scalar mathematics",
    ),
}
_SPLIT = "use the tensor cores at full precision: split each operand into two or three terms of TF32 or FP16"
_TENSOR_CORES = "use the tensor cores for all products, with the epilogue fused into the kernel"


def list_designs(target: Target, allows_matrix_units: bool) -> Sequence[str]:
    """Return the directions of complete designs, for attempts from the root."""
    units = {Target.CUDA: (_TENSOR_CORES if allows_matrix_units else _SPLIT,)}
    return (*_DESIGNS[target], *units.get(target, ()))


def choose_direction(choices: Sequence[str], seed: int | str, base_id: int, sibling: int) -> str:
    """Return the direction of one child of a node. Children that follow each other get different ones."""
    order = Random(f"{seed}/{base_id}/directions").sample(choices, len(choices))
    return order[sibling % len(order)]


def list_changes(target: Target) -> Sequence[str]:
    """Return the directions of single changes, for attempts below the root."""
    return [text for text in STRATEGIES if target is not Target.CPU or "launch" not in text]
