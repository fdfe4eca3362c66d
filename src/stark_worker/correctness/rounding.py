"""Accepts integers that rounding alone decides, and numbers far from zero where it decides as much.

Honest kernels may disagree on which of two nearly equal scores is larger: a fused multiply-add rounds once, the
reference twice. Such an integer is as right as the reference's own, and so is the one from double precision. To find
these, the reference runs again and rounds every rounded value differently. If an operation rounds nothing, as in
comparing or counting inputs, nothing is excused.

On inputs far from zero a task may lose all digits, even if the reference's own rounding happens to spare them. If the
reference would be refused itself when it rounds differently, such inputs refuse nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from stark_worker.correctness.compare import as_real, is_inexact, mismatch
from stark_worker.correctness.inputs import secret_seed
from stark_worker.correctness.model import run_task_code
from stark_worker.correctness.nested import to_double
from stark_worker.correctness.reference import Case, Reference
from stark_worker.device.arena import bits
from stark_worker.protocol.errors import TaskFault
from stark_worker.protocol.request import Score

ROUNDINGS = 16  # runs; nearly equal values swap in some of them, all but once in 65,536
MIN_ANSWERS = 3  # compared before giving up
MAX_WRONG_RATIO = 8  # the candidate's wrong places to those that rounding changed; a higher ratio is given up
# A rounded value may be off by so many units in the last place, or by this factor of its own error. Long sums are off
# by many units; short formats compute in single precision and round once.
MAX_ULPS, MAX_ULPS_SHORT, OWN_ERROR_FACTOR = 32.0, 2.0, 2.0
MAX_OPERATIONS_RATIO = 4  # a loop that takes more operations than this will not converge

Outputs = list[torch.Tensor]


def find_difference(reference: Reference, case: Case, number: int, mine: torch.Tensor) -> str | None:
    """Return how one output differs from the expected one; None if it agrees, or if rounding alone decides."""
    found = mismatch(mine, case.expected[number], case.allowed[number])
    if found is None or is_decided_by_rounding(reference, case, number, mine):
        return None
    return None if case.change and case.change.is_far and _is_unstable(reference, case, number) else found


def is_decided_by_rounding(reference: Reference, case: Case, number: int, mine: torch.Tensor) -> bool:
    """True if each integer is one that the reference gives, or would give if it rounded differently.

    Always False for KernelBench's score.
    """
    expected = case.expected[number]
    if reference.score is not Score.VERIFIED or mine.shape != expected.shape or any(map(is_inexact, (mine, expected))):
        return False
    right, most = mine == expected, 0
    wrong = int(right.logical_not().count_nonzero())
    for compared, outputs in enumerate(_possible_answers(reference, case)):
        if number < len(outputs) and (other := outputs[number]).shape == mine.shape:
            right.logical_or_(mine == other)
            most = max(most, int((other != expected).count_nonzero()))
        if right.all():
            return True
        if compared >= MIN_ANSWERS and wrong > MAX_WRONG_RATIO * (most + 1):
            return False
    return False


def _is_unstable(reference: Reference, case: Case, number: int) -> bool:
    """True if the reference is refused itself, in one of the ways in which it may round."""
    answers = (outputs[number] for outputs in _possible_answers(reference, case))
    return any(mismatch(other, case.expected[number], case.allowed[number]) for other in answers)


def _possible_answers(reference: Reference, case: Case) -> Iterator[Outputs]:
    """Yield the reference's outputs in double precision, then with values rounded differently; skip failures."""
    if reference.exact and (exact := _run_or_none(partial(_in_double, reference, case))):
        yield exact
        del exact
    plain = _RoundDifferently(None)
    if _run_or_none(partial(_run, reference, case, plain)) and plain.rounded:
        for _ in range(ROUNDINGS):
            otherwise = _RoundDifferently(
                (secret_seed() << 31) | secret_seed() | 1, MAX_OPERATIONS_RATIO * plain.operations
            )
            if nearly := _run_or_none(partial(_run, reference, case, otherwise)):
                yield nearly


def _run_or_none(step: Callable[[], Outputs]) -> Outputs | None:
    try:
        return run_task_code("forward()", step)
    except TaskFault:  # forward() insists on its own precision, does not end, or finds no memory
        return None


def _in_double(reference: Reference, case: Case) -> Outputs:
    return reference.run(copy.deepcopy(reference.model).double(), list(map(to_double, case.inputs)), case.seed)


def _run(reference: Reference, case: Case, rounding: _RoundDifferently) -> Outputs:
    model = copy.deepcopy(reference.model)
    with rounding:
        return reference.run(model, case.inputs, case.seed)


class _RoundDifferently(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operation in double precision too, which shows what it rounds.

    Rounded values are then rounded differently, by ``key``; without a key they stay.
    """

    def __init__(self, key: int | None, most: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._key, self._most = key, most
        self.rounded = False  # True once any value was rounded
        self.operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # to skip it, newer torch imports all of it, which takes seconds
        return False

    def __torch_dispatch__(self, operation: Any, _: Any, arguments: Any = (), named: Any = None) -> Any:
        self.operations += 1
        if self._most is not None and self.operations > self._most:
            raise TaskFault("It does not end if it rounds differently.")
        named = named or {}
        if torch.Tag.nondeterministic_seeded in operation.tags:  # random draws are not rounded
            return operation(*arguments, **named)
        exact = _run_in_double(operation, arguments, named)  # before the arguments change
        result = operation(*arguments, **named)
        for tensor, other in zip(_inexact_tensors(result), _inexact_tensors(exact), strict=False):
            if tensor.shape == other.shape:
                self._round(as_real(tensor), as_real(other).double())
        return result

    def _round(self, tensor: torch.Tensor, exact: torch.Tensor) -> None:
        """Move each rounded value by an amount that follows from its exact value, so that equal values stay equal."""
        error = exact - tensor
        off = error.ne(0).logical_and_(error.isfinite())
        if not off.any():
            return
        self.rounded = True
        if self._key is not None:
            kind = torch.finfo(tensor.dtype)
            share = (MAX_ULPS if kind.bits >= 32 else MAX_ULPS_SHORT) * kind.eps
            nudge = noise(exact, self._key).mul_(
                torch.maximum(error.abs_().mul_(OWN_ERROR_FACTOR), exact.abs().mul_(share))
            )
            tensor.copy_(torch.where(off, exact + nudge, tensor))


def _run_in_double(operation: Any, arguments: Any, named: Any) -> Any:
    """Run the operation in double precision, on copies if it works in place; None if it cannot."""
    mutable = operation._schema.is_mutable

    def widened(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return to_double(value).clone() if mutable else to_double(value)

    try:
        return operation(*tree_map(widened, arguments), **tree_map(widened, named))
    except RuntimeError:
        return None


def _inexact_tensors(result: Any) -> Iterator[torch.Tensor]:
    results: Iterable[Any] = result if isinstance(result, tuple | list) else [result]
    return (value for value in results if isinstance(value, torch.Tensor) and is_inexact(value))


def noise(values: torch.Tensor, key: int) -> torch.Tensor:
    """Return numbers between -1 and 1 from the bits of doubles: a product's upper bits depend on all of them."""
    return bits(values).mul(key).bitwise_right_shift_(48).to(torch.float64).div_(2.0**15)
