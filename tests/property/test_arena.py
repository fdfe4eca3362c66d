"""Places in an arena: as torch itself would lay a tensor out, without asking it for memory."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.device.arena import Arena, Places, nbytes

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
    spot = Places().place(tensor)
    assert real_strides(spot.shape, spot.stride) == real_strides(tensor.shape, tensor.stride())


@given(SHAPES, st.integers(0, 3), st.integers(2, 3))
def test_a_tensor_with_gaps_gets_a_place_without_any(shape, dimension, step):
    tensor = torch.arange(float(torch.Size([*shape, 6]).numel())).reshape(*shape, 6)
    gappy = tensor[..., ::step].transpose(0, min(dimension, tensor.ndim - 1))
    places = Places()
    spot = places.place(gappy)
    view = Arena(torch.zeros(places.size, dtype=torch.uint8)).view(spot)
    view.copy_(gappy)
    assert torch.equal(view, gappy)
    assert sum(each * (size - 1) for size, each in zip(spot.shape, spot.stride, strict=True)) * 4 < nbytes(gappy)
