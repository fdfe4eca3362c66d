"""Honest fp32 arithmetic passes in any order of summation; shorter formats and skipped terms fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from stark_worker.correctness.compare import error_share, mismatch
from stark_worker.correctness.inputs import FAR, RANDOM_SIGNS, changes
from stark_worker.correctness.reference import Case, Reference
from stark_worker.protocol.request import Precision
from stark_worker.referee.labels import precision_of

ROWS = 64
TASK = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, *more):
        return {body}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""
Tensor = torch.Tensor
Sum = Callable[[Tensor], Tensor]  # over the last dimension


def serial(terms: Tensor) -> Tensor:
    total = torch.zeros(terms.shape[:-1])
    for column in terms.movedim(-1, 0).contiguous():
        total.add_(column)
    return total


def kahan(terms: Tensor) -> Tensor:
    total, lost = torch.zeros(terms.shape[:-1]), torch.zeros(terms.shape[:-1])
    for column in terms.movedim(-1, 0).contiguous():
        term = column - lost
        more = total + term
        lost, total = (more - total) - term, more
    return total


def pairwise(terms: Tensor) -> Tensor:
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = torch.nn.functional.pad(terms, (0, 1))
        terms = terms[..., ::2] + terms[..., 1::2]
    return terms[..., 0]


def blocked(terms: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(terms, (0, -terms.shape[-1] % 256))
    return serial(serial(padded.unflatten(-1, (-1, 256))))


def backwards(terms: Tensor) -> Tensor:
    return serial(terms.flip(-1))


ORDERS = (serial, kahan, pairwise, blocked, backwards)


def softmax(x: Tensor, add: Sum) -> Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / add(powers)[:, None]


def layer_norm(x: Tensor, add: Sum) -> Tensor:
    centred = x - (add(x) / x.shape[-1])[:, None]
    return centred / (add(centred * centred) / x.shape[-1] + 1e-5).sqrt()[:, None]


KERNELS: dict[str, Callable[[Tensor, Sum], Tensor]] = {
    "x.sum(-1)": lambda x, add: add(x),
    "x.mean(-1)": lambda x, add: add(x) / x.shape[-1],
    "(x * x).sum(-1)": lambda x, add: add(x * x),
    "torch.logsumexp(x, -1)": lambda x, add: add((x - x.amax(-1, keepdim=True)).exp()).log() + x.amax(-1),
    "torch.softmax(x, -1)": softmax,
    "torch.nn.functional.layer_norm(x, x.shape[-1:])": layer_norm,
}


def cases_of(body: str, inputs: str, folder: Path) -> Iterator[Case]:
    """All distributions, each once."""
    reference = Reference(TASK.format(body=body, inputs=inputs), Precision.FP32, folder)
    assert reference.exact
    for change in (None, *changes()):
        case = reference.draw(change)
        assert case is not None
        yield case


def difference(case: Case, got: Tensor) -> str | None:
    return mismatch(got, case.expected[0], case.allowed[0])


@pytest.mark.parametrize("length", [3, 1_000, 16_384])
@pytest.mark.parametrize("body", KERNELS)
def test_sums_in_any_order_are_accepted(body, length, tmp_path):
    cases = [case for draw in ("rand", "randn") for case in cases_of(body, f"torch.{draw}({ROWS}, {length})", tmp_path)]
    together = torch.cat([case.inputs[0] for case in cases])  # a step of a serial sum takes the same for all
    for add in ORDERS:
        for case, got in zip(cases, KERNELS[body](together, add).split(ROWS), strict=True):
            assert not (wrong := difference(case, got)), (case.name, add.__name__, wrong)


def test_a_serial_sum_next_to_a_large_term_needs_its_own_limit():
    """The error of honest softmax kernels beyond 1e-4: most terms round to nothing."""
    row = torch.cat([torch.tensor([17.7]), torch.rand(16_383)])
    exact = torch.softmax(row.double(), -1)
    share = float(((softmax(row[None], serial)[0] - exact) / exact).abs().max())
    assert 2e-4 < share < 1e-3


def one_pass(x: Tensor, add: Sum) -> Tensor:
    mean, squares = add(x) / x.shape[-1], add(x * x) / x.shape[-1]
    return (x - mean[:, None]) * (squares - mean * mean + 1e-5).rsqrt()[:, None]


CARELESS: dict[str, Callable[[Tensor, Sum], Tensor]] = {
    "torch.logsumexp(x, -1)": lambda x, add: add(x.exp()).log(),
    "torch.softmax(x, -1)": lambda x, add: x.exp() / add(x.exp())[:, None],
    "torch.nn.functional.layer_norm(x, x.shape[-1:])": one_pass,
}


@pytest.mark.parametrize("length", [64, 1_000, 16_384])
@pytest.mark.parametrize("body", CARELESS)
def test_overflow_and_cancellation_show_far_from_zero(body, length, tmp_path):
    for draw in ("rand", "randn"):
        for case in cases_of(body, f"torch.{draw}({ROWS}, {length})", tmp_path):
            if case.name.startswith(FAR):
                assert difference(case, CARELESS[body](case.inputs[0], pairwise))


# --- products


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Serial products with one rounding for each term, as fused multiply-adds have."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for column, row in zip(a.t().double(), b.double(), strict=True):
        total = (total + column[:, None] * row).float()
    return total


def to_tf32(x: Tensor) -> Tensor:
    """Round to ten bits after the first."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def to_half(x: Tensor) -> Tensor:
    return x.half().float()


def split_product(a: Tensor, b: Tensor, shorten: Callable[[Tensor], Tensor]) -> Tensor:
    """Three short products: all but the product of both remainders, which are scaled to stay normal."""
    scale = 2.0**11
    high, low = (shorten(a), shorten(b)), (shorten((a - shorten(a)) * scale), shorten((b - shorten(b)) * scale))
    return high[0] @ high[1] + (high[0] @ low[1] + low[0] @ high[1]) / scale


def half_sum(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
    for begin in range(0, a.shape[1], 16):
        total += (a[:, begin : begin + 16] @ b[begin : begin + 16]).half()
    return total.float()


HONEST = {
    "fused": multiply,
    "torch": torch.matmul,
    "tf32 x3": lambda a, b: split_product(a, b, to_tf32),
    "fp16 x2": lambda a, b: split_product(a, b, to_half),
}
SHORT = {
    "tf32": lambda a, b: to_tf32(a) @ to_tf32(b),
    "tf32 of one side": lambda a, b: to_tf32(a) @ b,
    "fp16": lambda a, b: to_half(a) @ to_half(b),
    "bf16": lambda a, b: a.bfloat16().float() @ b.bfloat16().float(),
    "half sums": half_sum,
    "a term skipped": lambda a, b: a[:, 1:] @ b[1:],
}
SIZES = [(48, 64, 48), (32, 1_000, 32), (24, 8_192, 24)]


def product_inputs(draw: str, rows: int, length: int, columns: int) -> str:
    return f"torch.{draw}({rows}, {length}), torch.{draw}({length}, {columns})"


@pytest.mark.parametrize("draw", ["rand", "randn"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products_of_22_bits_count_as_fp32(draw, size, tmp_path):
    for case in cases_of("x @ more[0]", product_inputs(draw, *size), tmp_path):
        for name, product in HONEST.items():
            got = product(*case.inputs)
            assert not (wrong := difference(case, got)), (case.name, name, wrong)
            assert precision_of(error_share(got, case.expected[0]), lambda: 0.0, Precision.FP32) == "fp32"


@pytest.mark.parametrize("draw", ["rand", "randn"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", SHORT)
def test_shorter_products_fail_on_random_signs(draw, size, name, tmp_path):
    """Every candidate gets them. On positive values, long sums hide the rounding of each product."""
    for case in cases_of("x @ more[0]", product_inputs(draw, *size), tmp_path):
        if case.name == RANDOM_SIGNS:
            got = SHORT[name](*case.inputs)
            assert difference(case, got)
            assert precision_of(error_share(got, case.expected[0]), lambda: 0.0, Precision.FP32) != "fp32"
