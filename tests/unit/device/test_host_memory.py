"""The arena of a CPU: outputs are poisoned as a whole before a call, and copied as a whole after it."""

from __future__ import annotations

import itertools
import math
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.device import arena
from stark_worker.device.arena import READ_PARTS, Arena, ArenaAllocator, HostMemory, nbytes, poison

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
DTYPES = [*FLOATS, *COMPLEX, *INTEGERS, torch.bool]
LARGE = (3, 70_001)  # bytes: more than a page for every part, and no multiple of anything


@st.composite
def outputs(draw) -> torch.Tensor:
    """A dense tensor of any type in any memory order: of no element, of few, or of many parts."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4) | st.just(LARGE) | st.just((4097,)) | st.just((1,)))
    order = draw(st.permutations(range(len(shape))))
    return torch.empty(shape, dtype=draw(st.sampled_from(DTYPES))).permute(order)


class Shared:
    """The referee's side of an arena with these outputs, its own memory for each, and the bytes of both."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        layout = ArenaAllocator()
        slots = layout.place_all(tensors)
        file = os.memfd_create("arena", os.MFD_ALLOW_SEALING)
        self.memory = HostMemory(file, layout.size)
        os.close(file)
        self.views = self.memory.arena.views(slots)
        self.copies = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype) for each in self.views]

    def queue(self) -> None:
        self.memory.queue([], self.views, list(zip(self.copies, self.views, strict=True)))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a dense tensor in the order it lies there."""
    size = nbytes(tensor)
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return storage[tensor.storage_offset() * tensor.element_size() :][:size]


def fill(tensor: torch.Tensor, seed: int) -> None:
    view = as_bytes(tensor)
    view.copy_(torch.randint(0, 256, view.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8))


@given(st.lists(outputs(), min_size=1, max_size=3), st.integers(0, 2**31))
def test_all_that_a_call_wrote_is_copied(tensors, seed):
    shared = Shared(tensors)
    shared.queue()
    for number, view in enumerate(shared.views):
        fill(view, seed + number)
    shared.memory.read()
    for copy, view in zip(shared.copies, shared.views, strict=True):
        assert torch.equal(as_bytes(copy), as_bytes(view))


@given(st.lists(outputs(), min_size=1, max_size=3))
def test_each_byte_is_copied_once_and_none_beside_them(tensors):
    shared, moved = Shared(tensors), []
    shared.queue()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena.ctypes, "memmove", lambda *part: moved.append(part))
        shared.memory.read()
    for tensors_of, begins in ((shared.copies, 0), (shared.views, 1)):
        parts = sorted((part[begins], part[begins] + part[2]) for part in moved)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(parts))
        whole = [(each.data_ptr(), each.data_ptr() + nbytes(each)) for each in tensors_of]
        assert all(any(low <= begin and end <= high for low, high in whole) for begin, end in parts)
        assert sum(end - begin for begin, end in parts) == sum(map(nbytes, tensors_of))


def test_no_candidate_can_know_which_part_is_copied_first():
    shared = Shared([torch.empty(READ_PARTS, 4096, dtype=torch.uint8)])
    orders = []
    for _ in range(3):
        shared.queue()
        moved: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arena.ctypes, "memmove", lambda _, source, __, moved=moved: moved.append(source))
            shared.memory.read()
        orders.append(moved)
    assert len(orders[0]) == READ_PARTS
    assert len({tuple(order) for order in orders}) == len(orders)


def test_inputs_are_written_and_outputs_are_poisoned():
    shared = Shared([torch.empty(4, 3), torch.empty(5)])
    target, output = shared.views
    given = torch.randn(4, 3)
    before = torch.rand(5)
    output.copy_(before)
    shared.memory.queue([(target, given)], [output], [])
    assert torch.equal(target, given)
    assert not (output == before).any()


@given(outputs(), st.integers(0, 2**31))
def test_poison_reaches_every_element_and_nothing_else(tensor, seed):
    layout = ArenaAllocator()
    (_, slot, _) = layout.place_all([torch.empty(3), tensor, torch.empty(3)])
    whole = torch.empty(layout.size, dtype=torch.uint8)
    fill(whole, seed)
    view, before = Arena(whole).view(slot), whole.clone()
    poison(view)
    around = torch.ones(layout.size, dtype=torch.bool)
    around[slot.offset : slot.offset + nbytes(view)] = False
    assert torch.equal(whole[around], before[around])
    if view.numel():
        elements = as_bytes(view).reshape(view.numel(), view.element_size())
        assert (elements == elements[0]).all(), "one value everywhere, so nothing of an earlier result is left"


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
def test_a_number_that_was_not_written_is_mostly_none(dtype):
    """Only mostly: a result that is NaN by right must be written too."""
    seen = []
    for _ in range(200):
        view = torch.ones(9, dtype=dtype)
        poison(view)
        seen.append(float((torch.view_as_real(view) if dtype in COMPLEX else view).flatten()[0]))
    assert 100 < sum(map(math.isnan, seen)) < 190
    assert len({number for number in seen if math.isfinite(number)}) > 5


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
def test_whole_numbers_are_poisoned_with_another_value_from_call_to_call(dtype):
    """No candidate can know it, so none can leave out what would be right by chance."""
    seen = set()
    for _ in range(40):
        view = torch.zeros(3, dtype=dtype)
        poison(view)
        seen.add(view[0].item())
    assert len(seen) > (20 if dtype is not torch.bool else 1)
