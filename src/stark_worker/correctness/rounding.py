"""What rounding alone is_decided_by_rounding.

Which of two nearly equal scores is the larger, honest kernels can see differently: one that multiplies and adds in one
step rounds once where the reference rounds twice. Such an integer is as right as the reference's own, and so is the one
that double precision gives. To see which they are, the reference is run again with every value that an operation has
rounded rounded otherwise. Where nothing is rounded, as when inputs are compared or counted, nothing is excused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from stark_worker.correctness.compare import as_real, bits, is_inexact, mismatch
from stark_worker.correctness.inputs import secret_seed
from stark_worker.correctness.nested import doubled
from stark_worker.correctness.reference import Case, Reference, run_task_code
from stark_worker.protocol.errors import TaskFault
from stark_worker.protocol.request import Score

ROUNDINGS = 16  # nearly equal values change places in some of them; that all go one way is one in 65,536
MIN_ANSWERS, MAX_WRONG_RATIO = (
    3,
    8,
)  # after how many who is wrong in how many times as many places is not looked at any longer
# How far off a rounded value may be: so many units of the last place, or times what it was off itself. The result of a
# long sum is off by many units; in short formats it is made in single precision and rounded once.
MAX_ULPS, MAX_ULPS_SHORT, OWN_ERROR_FACTOR = 32.0, 2.0, 2.0
MAX_OPERATIONS_RATIO = 4  # times as many operations, after which what is to converge will not

Outputs = list[torch.Tensor]


def find_difference(reference: Reference, case: Case, number: int, mine: torch.Tensor) -> str | None:
    """How one output differs from what it should be; None where it does not, but for what rounding alone is_decided_by_rounding."""
    found = mismatch(mine, case.expected[number], case.allowed[number])
    return None if found is None or is_decided_by_rounding(reference, case, number, mine) else found


def is_decided_by_rounding(reference: Reference, case: Case, number: int, mine: torch.Tensor) -> bool:
    """Whether integers are at each place what the reference itself says, or would say if it rounded otherwise.

    KernelBench does not ask.
    """
    expected = case.expected[number]
    if reference.score is not Score.VERIFIED or mine.shape != expected.shape or any(map(is_inexact, (mine, expected))):
        return False
    right, most = mine == expected, 0
    wrong = int(right.logical_not().count_nonzero())
    for told, outputs in enumerate(_possible_answers(reference, case)):
        if number < len(outputs) and (other := outputs[number]).shape == mine.shape:
            right.logical_or_(mine == other)
            most = max(most, int((other != expected).count_nonzero()))
        if right.all():
            return True
        if told >= MIN_ANSWERS and wrong > MAX_WRONG_RATIO * (most + 1):
            return False
    return False


def _possible_answers(reference: Reference, case: Case) -> Iterator[Outputs]:
    """What the reference says in double precision, and where it rounds otherwise, as far as it can."""
    if reference.exact and (exact := _run_or_none(partial(_in_double, reference, case))):
        yield exact
        del exact
    asked = _RoundDifferently(None)
    if _run_or_none(partial(_run, reference, case, asked)) and asked.rounded:
        for _ in range(ROUNDINGS):
            otherwise = _RoundDifferently(
                (secret_seed() << 31) | secret_seed() | 1, MAX_OPERATIONS_RATIO * asked.operations
            )
            if nearly := _run_or_none(partial(_run, reference, case, otherwise)):
                yield nearly


def _run_or_none(step: Callable[[], Outputs]) -> Outputs | None:
    try:
        return run_task_code("forward()", step)
    except TaskFault:  # a forward that insists on its own precision or does not end, or there is no room
        return None


def _in_double(reference: Reference, case: Case) -> Outputs:
    return reference.run(copy.deepcopy(reference.model).double(), list(map(doubled, case.inputs)), case.seed)


def _run(reference: Reference, case: Case, rounding: _RoundDifferently) -> Outputs:
    model = copy.deepcopy(reference.model)
    with rounding:
        return reference.run(model, case.inputs, case.seed)


class _RoundDifferently(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, every operation is done in double precision as well, which shows what it rounds.

    That is rounded otherwise, by ``key``, or as it was where there is none.
    """

    def __init__(self, key: int | None, most: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._key, self._most = key, most
        self.rounded = False  # whether there was anything to round
        self.operations = 0

    def __torch_dispatch__(self, operation: Any, _: Any, arguments: Any = (), named: Any = None) -> Any:
        self.operations += 1
        if self._most is not None and self.operations > self._most:
            raise TaskFault("It does not end if it rounds otherwise.")
        named = named or {}
        if torch.Tag.nondeterministic_seeded in operation.tags:  # what is drawn is not rounded
            return operation(*arguments, **named)
        exact = _run_in_double(operation, arguments, named)  # before the arguments change
        result = operation(*arguments, **named)
        for tensor, other in zip(_inexact_tensors(result), _inexact_tensors(exact), strict=False):
            if tensor.shape == other.shape:
                self._round(as_real(tensor), as_real(other).double())
        return result

    def _round(self, tensor: torch.Tensor, exact: torch.Tensor) -> None:
        """By how much depends on the exact value alone, so that equal ones stay equal: which of them is meant, rounding
        does not decide.
        """
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
    """What the operation gives in double precision, on copies where it works in place; nothing where it cannot."""
    mutable = operation._schema.is_mutable

    def widened(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return doubled(value).clone() if mutable else doubled(value)

    try:
        return operation(*tree_map(widened, arguments), **tree_map(widened, named))
    except RuntimeError:
        return None


def _inexact_tensors(result: Any) -> Iterator[torch.Tensor]:
    results: Iterable[Any] = result if isinstance(result, tuple | list) else [result]
    return (value for value in results if isinstance(value, torch.Tensor) and is_inexact(value))


def noise(values: torch.Tensor, key: int) -> torch.Tensor:
    """Between -1 and 1, by the bits of double-precision numbers: the upper ones of a product depend on all of them."""
    return bits(values).mul(key).bitwise_right_shift_(48).to(torch.float64).div_(2.0**15)
