"""Slots in an arena have the strides that torch itself would choose, without allocating memory."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.device.arena import Arena, ArenaAllocator, nbytes

SHAPES = st.lists(st.integers(1, 5), max_size=4)


@st.composite
def tensors(draw):
    """Dense ones in any memory order, with or without data."""
    shape = draw(SHAPES)
    order = draw(st.permutations(range(len(shape))))
    return torch.empty(shape, device=draw(st.sampled_from(["cpu", "meta"]))).permute(order)


def real_strides(shape, strides):
    """Strides of dimensions with one element mean nothing."""
    return [step for size, step in zip(shape, strides, strict=True) if size > 1]


@given(tensors())
def test_a_dense_tensor_keeps_its_memory_order(tensor):
    slot = ArenaAllocator().place(tensor)
    assert real_strides(slot.shape, slot.stride) == real_strides(tensor.shape, tensor.stride())


@given(SHAPES, st.integers(0, 3), st.integers(2, 3))
def test_a_tensor_with_gaps_gets_a_place_without_any(shape, dimension, step):
    tensor = torch.arange(float(torch.Size([*shape, 6]).numel())).reshape(*shape, 6)
    gappy = tensor[..., ::step].transpose(0, min(dimension, tensor.ndim - 1))
    allocator = ArenaAllocator()
    slot = allocator.place(gappy)
    view = Arena(torch.zeros(allocator.size, dtype=torch.uint8)).view(slot)
    view.copy_(gappy)
    assert torch.equal(view, gappy)
    assert sum(each * (size - 1) for size, each in zip(slot.shape, slot.stride, strict=True)) * 4 < nbytes(gappy)
