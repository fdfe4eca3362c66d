"""What rounding alone decides.

Which of two nearly equal scores is the larger, honest kernels can see differently: one that multiplies and adds in one
step rounds once where the reference rounds twice. Such an integer is as right as the reference's own, and so is the one
that double precision gives. To see which they are, the reference is run again with inputs and weights a little off, and
every result that was rounded some more. Where nothing is rounded, as when inputs are compared as they are, nothing is
excused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stark_worker.compare import as_real, bits, is_inexact, mismatch, pieces
from stark_worker.draws import secret_seed
from stark_worker.faults import TaskFault
from stark_worker.memory import doubled
from stark_worker.protocol import Score
from stark_worker.reference import Case, Reference, of_task

NUDGES = 16  # nearly equal values change places in some of them; that all go one way is one in 65,536
# Units of the last place, at most. The result of a long sum is off by many; in short formats it is made in single
# precision and rounded once.
NUDGE, NUDGE_RESULT = 2.0, 32.0
FREEDOM = 2  # in how many times as many places as the reference says otherwise itself
# Operations that choose, move or draw values. One that is not named here counts as one that rounds.
# fmt: off
EXACT = frozenset({
    "_to_copy", "abs", "adaptive_max_pool2d", "adaptive_max_pool3d", "amax", "amin", "aminmax", "argmax", "argmin",
    "bernoulli", "cat", "ceil", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd", "copy", "cummax",
    "cummin", "embedding", "fill", "flip", "floor", "frexp", "gather", "im2col", "index", "index_put",
    "index_select", "kthvalue", "masked_fill", "masked_scatter", "masked_select", "max", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "maximum", "median", "min", "minimum", "mode", "nan_to_num", "neg", "normal",
    "reflection_pad1d", "reflection_pad2d", "relu", "repeat", "replication_pad1d", "replication_pad2d", "roll",
    "round", "scatter", "searchsorted", "sign", "sort", "stack", "take", "threshold", "topk", "tril", "triu",
    "trunc", "uniform", "where", "zero",
})
# fmt: on
DRAWN = ("empty", "full", "new_", "ones", "rand", "zeros")  # how names of those begin that compute nothing

SHORT = (torch.bfloat16, torch.float16)

Outputs = list[torch.Tensor]


def difference(reference: Reference, case: Case, number: int, mine: torch.Tensor) -> str | None:
    """How one output differs from what it should be; None where it does not, but for what rounding alone decides."""
    found = mismatch(mine, case.expected[number], case.allowed[number])
    return None if found is None or decides(reference, case, number, mine) else found


def decides(reference: Reference, case: Case, number: int, mine: torch.Tensor) -> bool:
    """Whether integers are at each place what the reference itself says, or would say if it rounded otherwise.

    KernelBench does not ask.
    """
    expected = case.expected[number]
    if reference.score is not Score.VERIFIED or mine.shape != expected.shape or any(map(is_inexact, (mine, expected))):
        return False
    right, most = mine == expected, 0
    wrong = int(right.logical_not().count_nonzero())
    for outputs in _answers(reference, case):
        if number < len(outputs) and (other := outputs[number]).shape == mine.shape:
            right.logical_or_(mine == other)
            most = max(most, int((other != expected).count_nonzero()))
        if wrong <= FREEDOM * most and right.all():
            return True
    return False


def _answers(reference: Reference, case: Case) -> Iterator[Outputs]:
    """What the reference says in double precision, and where it rounds otherwise, as far as it can."""
    if reference.exact and (exact := _said(partial(_in_double, reference, case))):
        yield exact
        del exact
    if _rounds(reference, case):
        for _ in range(NUDGES):
            if nearly := _said(partial(_nudged, reference, case, _RoundedOtherwise(key()))):
                yield nearly


def _said(step: Callable[[], Outputs]) -> Outputs | None:
    try:
        return of_task("forward()", step)
    except TaskFault:  # a forward that insists on its own precision, or there is no room for another
        return None


def _in_double(reference: Reference, case: Case) -> Outputs:
    return reference.run(copy.deepcopy(reference.model).double(), list(map(doubled, case.inputs)), case.seed)


def _rounds(reference: Reference, case: Case) -> bool:
    otherwise = _RoundedOtherwise(key())
    _said(partial(_nudged, reference, case, otherwise, units=0.0))
    return otherwise.rounded


def _nudged(reference: Reference, case: Case, otherwise: _RoundedOtherwise, units: float = NUDGE) -> Outputs:
    model, inputs = copy.deepcopy(reference.model), [tensor.clone() for tensor in case.inputs]
    for tensor in (*model.state_dict().values(), *inputs):
        nudge(tensor, otherwise.key, units)
    with otherwise:
        return reference.run(model, inputs, case.seed)


class _RoundedOtherwise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, what operations return is off by rounding, unless they do not round."""

    def __init__(self, key: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.key = key
        self.rounded = False  # whether there was anything to round

    def __torch_dispatch__(self, operation: Any, _: Any, arguments: Any = (), named: Any = None) -> Any:
        result = operation(*arguments, **(named or {}))
        name = operation.overloadpacket.__name__.rstrip("_")
        if name not in EXACT and not name.startswith(DRAWN):
            given = () if operation._schema.is_mutable else {_memory(tensor) for tensor in _tensors(arguments)}
            for tensor in _tensors(result if isinstance(result, tuple | list) else [result]):
                if is_inexact(tensor) and _memory(tensor) not in given:  # or it would be a view
                    self.rounded = True
                    nudge(tensor, self.key, NUDGE if tensor.dtype in SHORT else NUDGE_RESULT)
        return result


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    return (value for value in values if isinstance(value, torch.Tensor))


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def key() -> int:
    """What decides which values go up and which go down."""
    return (secret_seed() << 31) | secret_seed() | 1


def nudge(tensor: torch.Tensor, key: int, units: float) -> None:
    """Have its values off by up to so many units of the last place. By how much depends on the value alone, so that
    equal ones stay equal: which of those is meant, rounding does not decide.
    """
    values = as_real(tensor)
    if values.is_floating_point():
        share = units * torch.finfo(values.dtype).eps
        for _, piece in pieces(values):
            piece.mul_(_noise(piece, key).mul_(share).add_(1.0))


def _noise(values: torch.Tensor, key: int) -> torch.Tensor:
    """Between -1 and 1."""
    mixed = bits(values).to(torch.int64, copy=True).mul_(key).bitwise_right_shift_(32).bitwise_and_(0xFFFF)
    return mixed.to(torch.float64).div_(0x7FFF + 0.5).sub_(1.0)
