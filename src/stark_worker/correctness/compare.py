"""Whether what a candidate computed is what the reference computes.

``verified``: the error against a double-precision reference may be a few times the reference's own rounding error, or
a small share of the spread of the output, whichever is more, and large values may be off by a small share of
themselves. ``kernelbench``: the fixed tolerances of its version. Tolerances that the user sets replace either. Integers
and booleans are exact, but for what rounding alone decides (``rounding``). NaN and infinities, with their signs, have
to be where the reference has them. Complex numbers are compared as pairs of reals.

Everything works through pieces of a tensor, on the device it lies on, so that comparing outputs that fill the memory
takes little more of it; results are collected on the device and fetched once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from stark_worker.protocol.request import EvalRequest, KernelBenchVersion, Precision, Score

OWN_ERROR_FACTOR = 4.0
MAX_SPREAD_SHARE = 1e-2  # of the spread: beyond it the reference's own error says nothing but that it is unstable
PIECES = 256
# How many pieces, and how many elements in one at least, since fewer are slow, and at most.
HOST_PIECES, DEVICE_PIECES = (PIECES, 2**18, 2**24), (PIECES // 4, 2**23, 2**25)
MISMATCHES_SHOWN = 5
# What is smaller has no digits left, or counts as zero in many a kernel.
MIN_TOLERANCE = {Precision.FP32: 2.0**-126, Precision.BF16: 2.0**-126, Precision.FP16: 2.0**-24}
SPREAD_SAMPLE_SIZE, OUTLIER_RATIO = 2**16, 1_000.0


@dataclass(frozen=True)
class Rules:
    """What of the tolerances is left to the one who asks; None leaves it to the score."""

    kernelbench_version: KernelBenchVersion = KernelBenchVersion.HEAD
    atol: float | None = None
    rtol: float | None = None

    @classmethod
    def of(cls, request: EvalRequest) -> Rules:
        return cls(request.kernelbench_version, request.atol, request.rtol)


DEFAULT_RULES = Rules()


@dataclass(frozen=True)
class Tolerance:
    """``|got - expected| <= atol + rtol * |expected|``."""

    atol: float
    rtol: float


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of reals, anything else as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def is_inexact(tensor: torch.Tensor) -> bool:
    """Whether its values are rounded, as integers and booleans are not."""
    return tensor.is_floating_point() or tensor.is_complex()


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether there is no NaN and no infinity; either shows in the smallest or the largest value."""
    tensor = as_real(tensor)
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return True
    return all(bool(bound.isfinite()) for bound in tensor.aminmax())


def spread(tensor: torch.Tensor) -> float:
    """The standard deviation of the values that are not out of all proportion; 0 where there are fewer than two.

    What a mask sets to -1e9 would hide any error beside it.
    """
    tensor = as_real(tensor)
    limit = _outlier_limit(tensor)
    if (
        tensor.dtype in (torch.float32, torch.float64)
        and tensor.numel() < 2**31
        and _largest_magnitude(tensor) <= limit
    ):
        return float(tensor.std()) if tensor.numel() > 1 else 0.0
    count, mean, squares = 0, 0.0, 0.0  # of the pieces so far; squares: summed around the mean
    for _, piece in pieces(tensor):
        values = piece.to(_working_type(piece))
        values = values[values.abs() <= limit]
        if more := values.numel():
            variance, there = (float(x) for x in torch.var_mean(values, correction=0))
            step = there - mean
            squares += more * variance + step * step * count * more / (count + more)
            mean += step * more / (count + more)
            count += more
    return math.sqrt(squares / (count - 1)) if count > 1 else 0.0


def _outlier_limit(tensor: torch.Tensor) -> float:
    """How large a value can be beside the smaller ones that are not zero, of which a sample is looked at."""
    sample = tensor.flatten()[:: -(-max(tensor.numel(), 1) // SPREAD_SAMPLE_SIZE)].to(torch.float64).abs()
    sample = sample[(sample > 0) & sample.isfinite()]
    return OUTLIER_RATIO * float(sample.quantile(0.25)) if sample.numel() else math.inf


def _largest_magnitude(tensor: torch.Tensor) -> float:
    """NaN where there is one."""
    return max(map(abs, map(float, tensor.aminmax()))) if tensor.numel() and all_finite(tensor) else math.nan


def largest_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference between finite values."""
    worst = torch.zeros((), dtype=torch.float64, device=expected.device)
    for mine, theirs in _pairs(as_real(got), as_real(expected)):
        worst = torch.maximum(worst, _error(mine, theirs).nan_to_num_(0.0, 0.0, 0.0).max())
    return float(worst)


def error_share(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The error as a share of the values, both as root mean squares over what is finite."""
    errors = torch.zeros((), dtype=torch.float64, device=expected.device)
    values = torch.zeros_like(errors)
    for mine, theirs in _pairs(as_real(got), as_real(expected)):
        errors += _error(mine, theirs).nan_to_num_(0.0, 0.0, 0.0).square_().sum()
        values += theirs.to(_working_type(theirs)).nan_to_num(0.0, 0.0, 0.0).square_().sum()
    return math.sqrt(float(errors / values)) if values > 0 else 0.0


def same_finite(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the two are finite at the same places."""
    if all_finite(one) and all_finite(other):
        return True
    return all(torch.equal(a.isfinite(), b.isfinite()) for a, b in _pairs(as_real(one), as_real(other)))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one kind hold the same bits; NaN is equal to itself here."""
    if one.dtype is torch.complex128:
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    return all(torch.equal(a, b) for a, b in _pairs(bits(one), bits(other)))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers; elements of at most eight bytes."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def tolerance(
    expected: torch.Tensor, own_error: float, precision: Precision, score: Score, rules: Rules = DEFAULT_RULES
) -> Tolerance:
    """How far from ``expected`` a value may be."""
    expected = as_real(expected)
    if not expected.is_floating_point():
        return Tolerance(0.0, 0.0)
    loose = precision is not Precision.FP32
    if score is Score.KERNELBENCH:
        loose = loose or rules.kernelbench_version is KernelBenchVersion.V01
    atol = rtol = 1e-2 if loose else 1e-4
    if score is Score.VERIFIED and rules.atol is None:
        width = spread(expected)
        atol = max(atol * width, min(OWN_ERROR_FACTOR * own_error, MAX_SPREAD_SHARE * width), MIN_TOLERANCE[precision])
    return Tolerance(atol if rules.atol is None else rules.atol, rtol if rules.rtol is None else rules.rtol)


def mismatch(got: torch.Tensor, expected: torch.Tensor, allowed: Tolerance, piece: int | None = None) -> str | None:
    """None when the two agree, otherwise a few lines on how they differ. ``piece``: how many elements at a time."""
    got, expected = as_real(got), as_real(expected)
    if got.shape != expected.shape or got.is_floating_point() != expected.is_floating_point():
        return f"is {_format_kind(got)}, expected {_format_kind(expected)}"
    if got.numel() == 0 or (expected.is_floating_point() and _is_all_close(got, expected, allowed.atol, piece)):
        return None
    found = _find_mismatches(got, expected, allowed, piece)
    return _format_mismatches(found, got, expected, allowed) if found.wrong else None


@dataclass(frozen=True)
class _Mismatches:
    """What is wrong in how many places, and the first of these."""

    wrong: int
    unwritten: int
    places: list[list[int]]


def _is_all_close(got: torch.Tensor, expected: torch.Tensor, atol: float, piece: int | None) -> bool:
    """The common case, and cheap: no error beyond the absolute tolerance. A NaN is never near."""
    worst = torch.zeros((), dtype=_working_type(expected), device=expected.device)
    for mine, theirs in _pairs(got, expected, piece):
        low, high = _difference(mine, theirs).aminmax()
        worst = torch.maximum(worst, torch.maximum(high, -low))
    return bool(worst <= atol)


def _find_mismatches(got: torch.Tensor, expected: torch.Tensor, allowed: Tolerance, piece: int | None) -> _Mismatches:
    wrong = torch.zeros((), dtype=torch.int64, device=expected.device)
    unwritten = torch.zeros_like(wrong)
    places: list[list[int]] = []
    dimension, begin = _split_dimension(expected), 0
    for mine, theirs in _pairs(got, expected, piece):
        differs = _differs(mine, theirs, allowed)
        wrong += differs.count_nonzero()  # a sum would widen all of it first
        if mine.is_floating_point():
            unwritten += mine.isnan().logical_and_(differs).count_nonzero()
        if len(places) < MISMATCHES_SHOWN:
            for index in _first(differs, MISMATCHES_SHOWN - len(places)):
                index[dimension : dimension + 1] = [place + begin for place in index[dimension : dimension + 1]]
                places.append(index)
        begin += mine.shape[dimension] if mine.ndim else 0
    return _Mismatches(int(wrong), int(unwritten), places)


def _first(differs: torch.Tensor, count: int) -> list[list[int]]:
    """Where it is true; flat, because all the indices of a piece that is wrong throughout would be large."""
    return [_index(int(place), differs.shape) for place in differs.flatten().nonzero()[:count, 0]]


def _index(place: int, shape: Sequence[int]) -> list[int]:
    """A place in a flat tensor as an index. ``torch.unravel_index`` begins with seconds of importing."""
    index: list[int] = []
    for size in reversed(shape):
        place, at = divmod(place, size)
        index.insert(0, at)
    return index


def _differs(got: torch.Tensor, expected: torch.Tensor, allowed: Tolerance) -> torch.Tensor:
    """True where a value is wrong."""
    if not expected.is_floating_point():
        return got != expected
    near = _error(got, expected) <= expected.to(_working_type(expected)).abs().mul_(allowed.rtol).add_(allowed.atol)
    near.logical_and_(expected.isfinite())  # next to an infinity everything would be near
    near.logical_or_(got == expected)
    return near.logical_or_(got.isnan().logical_and_(expected.isnan())).logical_not_()


def _error(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return _difference(got, expected).abs_()


def _difference(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    wide = _working_type(expected)
    difference, expected = got.to(wide), expected.to(wide)
    return difference - expected if difference is got else difference.sub_(expected)


def _working_type(tensor: torch.Tensor) -> torch.dtype:
    narrow = tensor.is_floating_point() and tensor.dtype is not torch.float64
    return torch.float32 if narrow else torch.float64


def _split_dimension(tensor: torch.Tensor) -> int:
    """The dimension to cut along: the first that gives enough pieces, otherwise the longest."""
    enough = [dimension for dimension in range(tensor.ndim) if tensor.shape[dimension] >= PIECES]
    return enough[0] if enough else max(range(tensor.ndim), key=lambda each: tensor.shape[each], default=0)


def _pairs(
    got: torch.Tensor, expected: torch.Tensor, piece: int | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Views of both, piece by piece along one dimension: no stride, and no pair of strides, needs a copy."""
    for (begin, length), theirs in pieces(expected, piece):
        yield (got.narrow(_split_dimension(expected), begin, length) if got.ndim else got), theirs


def pieces(tensor: torch.Tensor, piece: int | None = None) -> Iterator[tuple[tuple[int, int], torch.Tensor]]:
    """Views of it along one dimension, each with where it begins and how long it is."""
    if tensor.numel() == 0:
        return
    if tensor.ndim == 0:
        yield (0, 1), tensor
        return
    dimension = _split_dimension(tensor)
    length = tensor.shape[dimension]
    count, fewest, most = DEVICE_PIECES if tensor.is_cuda else HOST_PIECES
    size = piece or min(max(tensor.numel() // count, fewest), most)
    rows = max(1, size * length // tensor.numel())
    for begin in range(0, length, rows):
        taken = min(rows, length - begin)
        yield (begin, taken), tensor.narrow(dimension, begin, taken)


def _format_mismatches(found: _Mismatches, got: torch.Tensor, expected: torch.Tensor, allowed: Tolerance) -> str:
    share, error = found.wrong / got.numel(), largest_error(got, expected)
    lines = [
        f"{found.wrong} of {got.numel()} values ({share:.2%}) are wrong; largest error {error:.6g}"
        f" (allowed: {allowed.atol:.3g} + {allowed.rtol:.3g} * |expected|)"
    ]
    if found.unwritten:
        lines.append(f"{found.unwritten} values are NaN or were never written")
    for place in found.places:
        index = tuple(place)
        lines.append(f"  at {place}: got {_format_number(got[index])}, expected {_format_number(expected[index])}")
    return "\n".join(lines)


def _format_kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _format_number(value: torch.Tensor) -> str:
    number = value.item()
    return f"{number:.7g}" if isinstance(number, float) and math.isfinite(number) else str(number)
