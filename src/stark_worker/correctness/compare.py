"""Compares a candidate's outputs with the reference's.

``verified`` allows honest fp32 arithmetic in any order of summation, up to 16,384 terms in one serial sum. In fp32 a
value may be off by 1e-4 of itself plus 1e-4 of the output's spread, or plus four times the reference's own rounding
error. On inputs with outliers it may be off by 1e-3 of itself, because a serial sum loses small terms next to a large
one. By these limits an fp32 kernel needs about 15 correct bits. Products that are split into three of TF32 or FP16
have 22 and pass. Single TF32, FP16 or BF16 products have 8 to 11 and fail, and so do sums in half precision. Tasks in
bf16 or fp16 get 1e-2 in place of 1e-4.

Far from zero, at a distance of ``n`` spreads, honest sums lose up to ``n`` times 1.5e-5 of the output's spread.

``kernelbench`` uses the fixed tolerances of its version. Tolerances that the user sets replace either. Integers and
booleans must be equal, except where rounding alone decides (``rounding``). NaN and infinities must be where the
reference has them. Complex numbers are pairs of reals.

Tensors are compared piece by piece on their own device: outputs may fill most of the memory. Results are collected on
the device and fetched once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from stark_worker.device.arena import bits
from stark_worker.protocol.request import EvalRequest, KernelBenchVersion, Precision, Score

OWN_ERROR_FACTOR = 4.0
# A serial fp32 sum of 16,384 terms can lose so much: next to one large term, each small one may round to nothing.
SERIAL_SUM_SHARE = 16_384 * 2.0**-24
MAX_SPREAD_SHARE = 1e-2  # of the spread: a larger error of the reference only shows that it is unstable
PIECES = 256
# Number of pieces, and the least and most elements of one: small pieces are slow.
HOST_PIECES, DEVICE_PIECES = (PIECES, 2**18, 2**24), (PIECES // 4, 2**23, 2**25)
MISMATCHES_SHOWN = 5
# Smaller values have no digits left, or many kernels flush them to zero.
MIN_TOLERANCE = {Precision.FP32: 2.0**-126, Precision.BF16: 2.0**-126, Precision.FP16: 2.0**-24}
SPREAD_SAMPLE_SIZE, OUTLIER_RATIO = 2**16, 1_000.0


@dataclass(frozen=True)
class Rules:
    """Tolerances that a request may set; None leaves them to the score."""

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
    """View complex numbers as pairs of reals; return other tensors unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def is_inexact(tensor: torch.Tensor) -> bool:
    """True if its values are rounded; integers and booleans are not."""
    return tensor.is_floating_point() or tensor.is_complex()


def all_finite(tensor: torch.Tensor) -> bool:
    """True if there is no NaN and no infinity; either shows in the smallest or the largest value."""
    tensor = as_real(tensor)
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return True
    return all(bool(bound.isfinite()) for bound in tensor.aminmax())


def spread(tensor: torch.Tensor) -> float:
    """Return the standard deviation without outliers; 0 for fewer than two values.

    Outliers, such as a mask's -1e9, would hide any error of the other values.
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
    """Return the magnitude from which a value is an outlier, estimated from a sample of the nonzero values."""
    sample = tensor.flatten()[:: -(-max(tensor.numel(), 1) // SPREAD_SAMPLE_SIZE)].to(torch.float64).abs()
    sample = sample[(sample > 0) & sample.isfinite()]
    return OUTLIER_RATIO * float(sample.quantile(0.25)) if sample.numel() else math.inf


def _largest_magnitude(tensor: torch.Tensor) -> float:
    """Return the largest magnitude; NaN if a value is not finite."""
    return max(map(abs, map(float, tensor.aminmax()))) if tensor.numel() and all_finite(tensor) else math.nan


def largest_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference between finite values."""
    worst = torch.zeros((), dtype=torch.float64, device=expected.device)
    for mine, theirs in _pairs(as_real(got), as_real(expected)):
        worst = torch.maximum(worst, _error(mine, theirs).nan_to_num_(0.0, 0.0, 0.0).max())
    return float(worst)


def error_share(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the error as a share of the values, both as root mean squares over finite values."""
    errors = torch.zeros((), dtype=torch.float64, device=expected.device)
    values = torch.zeros_like(errors)
    for mine, theirs in _pairs(as_real(got), as_real(expected)):
        errors += _error(mine, theirs).nan_to_num_(0.0, 0.0, 0.0).square_().sum()
        values += theirs.to(_working_type(theirs)).nan_to_num(0.0, 0.0, 0.0).square_().sum()
    return math.sqrt(float(errors / values)) if values > 0 else 0.0


def equal_up_to_rounding(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two outputs of one model differ by no more than rounding can cause."""
    limit = MAX_SPREAD_SHARE * spread(one) if is_inexact(one) else 0.0
    return one.shape == other.shape and largest_error(one, other) <= limit


def choose_exact(own: torch.Tensor, exact: torch.Tensor, is_short: bool) -> tuple[torch.Tensor, float]:
    """Return the output in double precision and the error of the own one. If they did not compute the same: the own."""
    if own is exact or not is_inexact(own) or own.shape != exact.shape or own.is_complex() != exact.is_complex():
        return own, 0.0
    limit = 10 * MAX_SPREAD_SHARE if is_short else MAX_SPREAD_SHARE
    if mismatch(own, exact, Tolerance(limit * spread(own), limit)) or not same_finite(own, exact):
        return own, 0.0
    return exact, largest_error(own, exact)


def same_finite(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if both are finite at the same places."""
    if all_finite(one) and all_finite(other):
        return True
    return all(torch.equal(a.isfinite(), b.isfinite()) for a, b in _pairs(as_real(one), as_real(other)))


def finite_wherever(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if the first is finite at all places at which the other is."""
    if one.shape != other.shape:
        return False
    return all(bool((a.isfinite() | ~b.isfinite()).all()) for a, b in _pairs(as_real(one), as_real(other)))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors of one kind hold the same bits; NaN equals itself here."""
    if one.dtype is torch.complex128:
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    return all(torch.equal(a, b) for a, b in _pairs(bits(one), bits(other)))


def tolerance(
    expected: torch.Tensor,
    own_error: float,
    precision: Precision,
    score: Score,
    rules: Rules = DEFAULT_RULES,
    has_outliers: bool = False,
    loss: float = 0.0,
) -> Tolerance:
    """Return the allowed distance from ``expected``.

    ``has_outliers`` is about the inputs. ``loss`` is the share of the spread that such inputs cost honest arithmetic.
    """
    expected = as_real(expected)
    if not expected.is_floating_point():
        return Tolerance(0.0, 0.0)
    loose = precision is not Precision.FP32
    if score is Score.KERNELBENCH:
        loose = loose or rules.kernelbench_version is KernelBenchVersion.V01
    atol = rtol = 1e-2 if loose else 1e-4
    if score is Score.VERIFIED and rules.atol is None:
        width = spread(expected)
        own = min(OWN_ERROR_FACTOR * own_error, MAX_SPREAD_SHARE * width)
        atol = max(atol * width, loss * width, own, MIN_TOLERANCE[precision])
        rtol = max(rtol, SERIAL_SUM_SHARE) if has_outliers else rtol
    return Tolerance(atol if rules.atol is None else rules.atol, rtol if rules.rtol is None else rules.rtol)


def mismatch(got: torch.Tensor, expected: torch.Tensor, allowed: Tolerance, piece: int | None = None) -> str | None:
    """Return None if the two agree, otherwise a few lines on the differences. ``piece`` is elements at a time."""
    got, expected = as_real(got), as_real(expected)
    if got.shape != expected.shape or got.is_floating_point() != expected.is_floating_point():
        return f"is {_format_kind(got)}, expected {_format_kind(expected)}"
    if got.numel() == 0 or (expected.is_floating_point() and _is_all_close(got, expected, allowed.atol, piece)):
        return None
    found = _find_mismatches(got, expected, allowed, piece)
    return _format_mismatches(found, got, expected, allowed) if found.wrong else None


@dataclass(frozen=True)
class _Mismatches:
    """Counts of wrong and of unwritten values, and the first wrong places."""

    wrong: int
    unwritten: int
    places: list[list[int]]


def _is_all_close(got: torch.Tensor, expected: torch.Tensor, atol: float, piece: int | None) -> bool:
    """True if no error exceeds the absolute tolerance: the common case, and cheap. A NaN is never close."""
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
    """Return the first true places. Search flat: the indices of a piece that is all wrong would be large."""
    return [index_of(int(place), differs.shape) for place in differs.flatten().nonzero()[:count, 0]]


def index_of(place: int, shape: Sequence[int]) -> list[int]:
    """Turn a flat place into an index. ``torch.unravel_index`` imports for seconds."""
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
    near.logical_and_(expected.isfinite())  # an infinite tolerance would accept everything
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
    """Return the dimension to cut along: the first that gives enough pieces, otherwise the longest."""
    enough = [dimension for dimension in range(tensor.ndim) if tensor.shape[dimension] >= PIECES]
    return enough[0] if enough else max(range(tensor.ndim), key=lambda each: tensor.shape[each], default=0)


def _pairs(
    got: torch.Tensor, expected: torch.Tensor, piece: int | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield views of both, piece by piece along one dimension; no strides need a copy."""
    for (begin, length), theirs in pieces(expected, piece):
        yield (got.narrow(_split_dimension(expected), begin, length) if got.ndim else got), theirs


def pieces(tensor: torch.Tensor, piece: int | None = None) -> Iterator[tuple[tuple[int, int], torch.Tensor]]:
    """Yield views along one dimension, each with its begin and length."""
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
