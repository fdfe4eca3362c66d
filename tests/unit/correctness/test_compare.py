"""What the comparison accepts, what it finds, and what it needs for it."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stark_worker.correctness.compare import Rules, Tolerance, largest_error, mismatch, same_finite, spread, tolerance
from stark_worker.protocol.request import EvalRequest, KernelBenchVersion, Precision, Score

ALLOWED = Tolerance(1e-3, 1e-3)
EXACT = Tolerance(0.0, 0.0)

shapes = st.lists(st.integers(1, 7), max_size=4).map(tuple)
seeds = st.integers(0, 2**31)
pieces = st.none() | st.integers(1, 50)
floats = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])


def normal(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def somewhere(shape: tuple[int, ...], seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(int(torch.randint(size, (), generator=generator)) for size in shape)


def turned(tensor: torch.Tensor, turn: bool) -> torch.Tensor:
    """The same values in another order of memory."""
    return tensor.movedim(0, -1).contiguous().movedim(-1, 0) if turn and tensor.ndim else tensor


@given(shapes, seeds, seeds, pieces, st.booleans(), floats, st.sampled_from([1, -1]))
def test_an_error_beyond_tolerance_is_found_and_located(shape, seed, place_seed, piece, turn, dtype, sign):
    expected = normal(shape, seed, dtype)
    place = somewhere(shape, place_seed)
    got = turned(expected.clone(), turn)
    got[place] += sign * (0.1 + 0.1 * abs(float(expected[place])))
    difference = mismatch(got, expected, ALLOWED, piece)
    assert difference is not None
    assert difference.startswith(f"1 of {expected.numel()} values")
    assert f"at {list(place)}: got" in difference
    (error,) = re.findall(r"largest error (\S+)", difference)
    assert math.isclose(float(error), abs(float(got[place].double() - expected[place].double())), rel_tol=1e-2)


@given(shapes, seeds, pieces, st.booleans())
def test_errors_within_tolerance_are_accepted(shape, seed, piece, turn):
    expected = normal(shape, seed, torch.float64)
    wobble = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 1.98 - 0.99
    got = expected + wobble * (ALLOWED.atol + ALLOWED.rtol * expected.abs())
    assert mismatch(turned(got, turn), expected, ALLOWED, piece) is None


@given(shapes, seeds, st.floats(0.0, 3.0), st.integers(1, 50), st.integers(1, 50))
def test_the_size_of_the_pieces_does_not_change_the_verdict(shape, seed, size, one, other):
    expected = normal(shape, seed)
    got = expected + normal(shape, seed + 1) * size * ALLOWED.atol
    first, second = (mismatch(got, expected, ALLOWED, piece) for piece in (one, other))
    assert (first and first.splitlines()[0]) == (second and second.splitlines()[0])
    assert (first is None) == bool(torch.isclose(got, expected, rtol=ALLOWED.rtol, atol=ALLOWED.atol).all())


@given(shapes, seeds, st.sampled_from([torch.int64, torch.int32, torch.uint8, torch.bool]), pieces)
def test_integers_are_exact(shape, seed, dtype, piece):
    expected = (normal(shape, seed) * 50).abs().to(dtype)
    assert mismatch(expected.clone(), expected, EXACT, piece) is None
    place = somewhere(shape, seed)
    got = expected.clone()
    got[place] = 0 if bool(expected[place]) else 1
    difference = mismatch(got, expected, tolerance(expected, 1.0, Precision.FP16, Score.KERNELBENCH), piece)
    assert difference is not None
    assert f"at {list(place)}" in difference


def test_large_integers_that_differ_by_one():
    expected = torch.tensor([2**62 + 1])
    assert mismatch(expected - 1, expected, EXACT) is not None


SPECIAL = [1.0, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("got", SPECIAL)
@pytest.mark.parametrize("expected", SPECIAL)
@given(shape=shapes, seed=seeds)
@settings(max_examples=10)
def test_nan_and_infinities_have_to_be_where_the_reference_has_them(got, expected, shape, seed):
    theirs = normal(shape, seed)
    mine, place = theirs.clone(), somewhere(shape, seed)
    mine[place], theirs[place] = got, expected
    same = got == expected or (math.isnan(got) and math.isnan(expected))
    assert (mismatch(mine, theirs, ALLOWED) is None) == same


def test_what_was_never_written_is_counted():
    expected = torch.ones(10)
    got = expected.clone()
    got[3:6] = math.nan
    difference = mismatch(got, expected, ALLOWED)
    assert difference is not None
    assert "3 values are NaN or were never written" in difference


def test_another_shape_or_kind_is_a_mismatch():
    assert mismatch(torch.ones(3), torch.ones(4), ALLOWED) == "is float32[3], expected float32[4]"
    assert mismatch(torch.ones(3), torch.ones(3, dtype=torch.int64), ALLOWED) == "is float32[3], expected int64[3]"


def test_nothing_agrees_with_nothing():
    assert mismatch(torch.ones(0, 3), torch.ones(0, 3), EXACT) is None


def test_complex_numbers_are_compared_by_both_parts():
    expected = torch.view_as_complex(normal((4, 5, 2), 1))
    assert mismatch(expected.clone(), expected.to(torch.complex128), ALLOWED) is None
    got = expected.clone()
    got[2, 3] += 1j
    difference = mismatch(got, expected, ALLOWED)
    assert difference is not None
    assert "at [2, 3, 1]" in difference
    assert mismatch(expected.conj(), expected, ALLOWED) is not None


@given(shapes, seeds, floats)
def test_spread_and_largest_error_are_of_the_finite_values(shape, seed, dtype):
    assume(math.prod(shape) > 3)
    values = normal(shape, seed, dtype)
    changed = values.clone()
    changed.view(-1)[:2] = torch.tensor([math.nan, math.inf], dtype=dtype)
    rest = changed.view(-1)[2:].double()
    assert math.isclose(spread(changed), float(rest.std()), rel_tol=1e-5, abs_tol=1e-12)
    assert largest_error(changed, values) == 0.0
    assert not same_finite(values, changed)
    assert same_finite(changed, changed + 1)


def test_the_spread_of_many_pieces():
    values = normal((1000, 300), 7, torch.bfloat16) + 3.0
    assert math.isclose(spread(values), float(values.double().std()), rel_tol=1e-5)


V01, HEAD = KernelBenchVersion.V01, KernelBenchVersion.HEAD


@pytest.mark.parametrize(
    ("version", "precision", "share"),
    [(V01, "fp32", 1e-2), (HEAD, "fp32", 1e-4), (HEAD, "fp16", 1e-2), (HEAD, "bf16", 1e-2)],
)
def test_kernelbench_has_fixed_tolerances(version, precision, share):
    rules = Rules(kernelbench_version=version)
    given_by = tolerance(torch.randn(9) * 100, 5.0, Precision(precision), Score.KERNELBENCH, rules)
    assert given_by == Tolerance(share, share)


def test_verified_tolerances_follow_the_spread_and_the_references_own_error():
    expected = normal((1000,), 3) * 50
    width = spread(expected)
    assert tolerance(expected, 0.0, Precision.FP32, Score.VERIFIED) == Tolerance(1e-4 * width, 1e-4)
    assert tolerance(expected, 1e-3 * width, Precision.FP32, Score.VERIFIED) == Tolerance(4e-3 * width, 1e-4)
    assert tolerance(expected, width, Precision.FP32, Score.VERIFIED) == Tolerance(1e-2 * width, 1e-4)


@pytest.mark.parametrize("score", Score)
def test_tolerances_of_the_user_take_the_place_of_the_scores(score):
    request = EvalRequest("", "", atol=0.25, rtol=0.0)
    assert tolerance(torch.randn(9), 0.1, Precision.FP32, score, Rules.of(request)) == Tolerance(0.25, 0.0)


PEAK = """
import resource, torch
from stark_worker.correctness.compare import Tolerance, mismatch

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def added_share(rows, got_type, expected_type, wrong):
    small = torch.ones(rows, 4)
    assert mismatch(small + 1, small, Tolerance(1e-4, 1e-4))  # whatever a first use loads is there now
    expected = torch.ones((rows, 10000), dtype=expected_type)
    got = torch.full((rows, 10000), 2 if wrong else 1, dtype=got_type)
    before = peak()
    assert before > expected.nbytes + got.nbytes
    assert (mismatch(got, expected, Tolerance(1e-4, 1e-4)) is None) == (not wrong)
    return (peak() - before) / (expected.nbytes + got.nbytes)

torch.set_num_threads(1)
print(added_share(1000, torch.float32, torch.float32, False))
print(added_share(1500, torch.float32, torch.float32, True))
print(added_share(2000, torch.int32, torch.int32, True))
print(added_share(4500, torch.bfloat16, torch.bfloat16, True))
print(added_share(5000, torch.float32, torch.float64, True))
"""


def test_comparing_takes_less_than_a_tenth_more_memory():
    """From 80 to 600 megabytes, each more than the one before: a process only knows its highest peak."""
    run = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert all(float(line) < 0.1 for line in run.stdout.splitlines()), run.stdout


@pytest.mark.parametrize(("precision", "least"), [("fp32", 2.0**-126), ("bf16", 2.0**-126), ("fp16", 2.0**-24)])
def test_numbers_without_digits_may_be_taken_for_zero(precision, least):
    expected = torch.full((1000,), least / 2, dtype=torch.float64)
    expected[0] = 1.0
    allowed = tolerance(expected, 0.0, Precision(precision), Score.VERIFIED)
    assert mismatch(expected.where(expected == 1.0, 0.0), expected, allowed) is None
    assert mismatch(expected.where(expected == 1.0, 3 * least), expected, allowed)
