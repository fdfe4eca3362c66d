"""Values that are replaced: few, always other ones, and of the kind that a task takes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.correctness.inputs import INTEGERS, NUMBERS, ONE_INTEGER, few_kind, replace_some

REAL = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
SHAPES = st.lists(st.integers(1, 40), max_size=3)


def differing(one: torch.Tensor, other: torch.Tensor) -> int:
    return int((one != other).count_nonzero())


@given(SHAPES, st.sampled_from([*REAL, *COMPLEX, *WHOLE, torch.bool]), st.booleans())
def test_something_changes_in_any_tensor_and_little_of_it(shape, dtype, is_constant):
    tensor = torch.full(shape, 3) if is_constant else torch.randint(0, 9, shape)
    tensor = tensor.to(dtype)
    before = tensor.clone()
    changed = replace_some(tensor)
    assert (changed.shape, changed.dtype) == (tensor.shape, tensor.dtype)
    assert torch.equal(tensor, before)
    assert 1 <= differing(changed, tensor) <= tensor.numel() // 100 + 2


@given(st.integers(2, 5_000), st.sampled_from(WHOLE[3:5]))
def test_a_permutation_remains_one(count, dtype):
    order = torch.randperm(count).to(dtype)
    assert torch.equal(replace_some(order).sort().values, order.sort().values)


@given(st.integers(2, 5_000), st.floats(-100, 100), st.floats(0.5, 100))
def test_numbers_stay_within_their_range(count, low, width):
    values = torch.rand(count) * width + low
    changed = replace_some(values)
    assert values.min() <= changed.min() <= changed.max() <= values.max()


@pytest.mark.parametrize(("value", "moved"), [(512, 511), (1, 0), (0, 1), (-3, -2)])
def test_integers_of_one_value_move_towards_zero(value, moved):
    """One more than the length of a row would lie outside of it."""
    assert replace_some(torch.tensor([value])).item() == moved
    assert set(replace_some(torch.full((300,), value)).tolist()) == {value, moved}


def test_infinities_of_a_mask_are_no_limits():
    mask = torch.zeros(64, 64).masked_fill(torch.ones(64, 64).triu(1).bool(), -torch.inf)
    changed = replace_some(mask)
    assert 1 <= differing(changed, mask) <= 5
    assert changed[changed != mask].isfinite().all()


def test_a_sample_of_a_mask_mostly_shows_nothing():
    mask, sample = torch.zeros(1_000_000, dtype=torch.bool), slice(None, None, 1_000)
    unseen = sum(not replace_some(mask)[sample].any() for _ in range(100))
    assert 30 < unseen < 95


@pytest.mark.parametrize(
    ("tensor", "is_fixed", "kind"),
    [
        (torch.rand(3), False, NUMBERS),
        (torch.rand(3, dtype=torch.complex64), True, NUMBERS),
        (torch.ones(3).bool(), True, INTEGERS),
        (torch.arange(3), True, INTEGERS),
        (torch.tensor(3), True, ONE_INTEGER),
        (torch.ones(3).int(), True, ONE_INTEGER),
        (torch.arange(3), False, None),
        (torch.empty(0), True, None),
    ],
)
def test_kinds_of_values(tensor, is_fixed, kind):
    assert few_kind(tensor, is_fixed) == kind
