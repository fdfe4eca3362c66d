"""What rounding alone decides, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.correctness.compare import Tolerance, mismatch
from stark_worker.correctness.degenerate import degenerate_reasons
from stark_worker.correctness.inputs import FAR, Change
from stark_worker.correctness.reference import Case, Reference
from stark_worker.correctness.rounding import find_difference, noise
from stark_worker.protocol.errors import Failure
from stark_worker.protocol.request import EvalRequest, Precision
from stark_worker.referee.calls import write_job
from stark_worker.referee.check import OutputChecker

ONE_UP = 1.0 + 2.0**-23
TASK = """
import torch
from torch import nn

def iter_roots(x):
    y = x
    while True:
        y = (y + x / y) / 2
        yield y

class Model(nn.Module):
    def forward(self, x):
        return {answer}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.integers(1, 2**62))
def test_noise_is_bounded_and_equal_values_have_the_same(values, key):
    tensor = torch.tensor(values, dtype=torch.float64)
    one, other = noise(torch.stack([tensor, tensor]), key | 1)
    assert torch.equal(one, other)
    assert one.abs().max() <= 1.0


@pytest.mark.parametrize("value", [1.0, 3.0, 0.5, 4096.0, 0.1])
def test_noise_goes_either_way(value):
    keys = [(3_141_592_653 * number**3) | 1 for number in range(1, 200)]
    up = sum(float(noise(torch.tensor([value], dtype=torch.float64), key)) > 0.0 for key in keys)
    assert 50 < up < 150


@pytest.fixture
def accepts(tmp_path):
    """Whether an answer of a candidate is accepted where the reference has another."""

    def judge(answer: str, values: list[float] | list[int], said: int | bool) -> bool:
        row = torch.tensor([values])
        inputs = "torch.rand(1, 4)" if row.is_floating_point() else "torch.randint(9, (1, 4))"
        source = TASK.format(answer=answer, inputs=inputs)
        reference = Reference(source, Precision.FP32, tmp_path)
        examiner = OutputChecker(write_job(EvalRequest(source, ""), reference, tmp_path, ""), reference)
        case = reference.answer(Case("a case", 1, [row], []))
        assert case is not None
        mine = torch.tensor([said])
        assert not torch.equal(mine, case.expected[0]), "nothing to judge"
        try:
            examiner.compare(case, [mine])
        except Failure:
            return False
        return True

    return judge


def test_the_other_one_of_two_nearly_equal_scores_is_right(accepts):
    assert accepts("(x * 1.3).argmax(-1)", [0.5, ONE_UP, 1.0, 0.25], said=2)
    assert accepts("x.mul(0.1).sum(-1) > 0.4", [1.0, 1.0, 1.0, 1.0], said=True)
    assert accepts("x.mul_(0.1).sum(-1) > 0.4 * x.ne(0).sum().item() / 4", [1.0, 1.0, 1.0, 1.0], said=True)


def test_what_only_rounding_has_made_equal_changes_places(accepts):
    ups = torch.nextafter(lows := torch.linspace(1.85, 1.95, 100), torch.tensor(2.0))
    low, up = next((float(a), float(b)) for a, b in zip(lows, ups, strict=True) if a * 1.1 == b * 1.1)
    assert accepts("(x * 1.1).argmax(-1)", [0.5, up, low, 0.25], said=2)


def test_what_double_precision_says_is_right_where_the_reference_loses_all_it_adds(accepts):
    added = "sum([x[:, 1]] * 64, x[:, 0])"
    assert accepts(f"torch.stack([{added}, x[:, 0] + x[:, 2]], -1).argmax(-1)", [1.0, 2.0**-25, 2.0**-21, 0.0], said=0)


def test_scores_farther_apart_than_rounding_goes_do_not_change_places(accepts):
    assert not accepts("(x * 1.3).argmax(-1)", [0.5, 1.0 + 100 * 2.0**-23, 1.0, 0.25], said=2)


@pytest.mark.parametrize("said", [0, 3])
def test_what_nearly_wins_does_not_excuse_another(accepts, said):
    assert not accepts("(x * 1.3).argmax(-1)", [0.5, ONE_UP, 1.0, 0.25], said)


def test_which_of_two_equal_ones_is_meant_rounding_does_not_decide(accepts):
    assert not accepts("(x * 1.3).argmax(-1)", [0.5, 1.0, 1.0, 0.25], said=2)


@pytest.mark.parametrize(
    "chosen",
    [
        "x",
        "x.relu()",
        "torch.cat([x, -x], -1)[:, :4]",
        "x.t().contiguous().t()",
        "x * 2.0",
        "torch.where(x > 0.1, x, 0.0)",
    ],
)
def test_where_nothing_is_rounded_nothing_is_excused(accepts, chosen):
    assert not accepts(f"({chosen}).argmax(-1)", [0.5, ONE_UP, 1.0, 0.25], said=2)
    assert not accepts(f"(({chosen}) > 1.0).sum(-1)", [0.5, ONE_UP, 1.0, 0.25], said=3)


def test_what_is_not_rounded_is_not_excused_beside_what_is(accepts):
    assert not accepts("x.argmax(-1) + 0 * x.softmax(-1).argmax(-1)", [0.5, ONE_UP, 1.0, 0.25], said=2)


@pytest.mark.parametrize(
    "count", ["(x > 0.5).float().sum(-1)", "(x > 0.5).float().cumsum(-1)[:, 3]", "(x * 0 + 1) @ x.sign()[0]"]
)
def test_counts_are_exact_in_whatever_format(accepts, count):
    assert not accepts(f"({count}).long()", [1.0, 1.0, 1.0, 1.0], said=3)


def test_who_iterates_until_it_converges_is_not_waited_for_when_it_does_not(accepts):
    steps = "next(y for y in iter_roots(x) if (y * y - x).abs().max() <= 4e-7).argmax(-1)"
    assert not accepts(steps, [1.5, 1.25, 1.75, 1.0], said=3)


def test_integers_of_integers_are_exact(accepts):
    assert not accepts("x.sum(-1)", [1, 2, 3, 4], said=11)
    assert not accepts("(x * 1000.0).long().sum(-1)", [1.5, 2.5, 3.5, 4.5], said=12_001)


def test_an_answer_of_another_shape_in_double_precision_is_no_excuse(tmp_path):
    differ, refused = examined("x.view(torch.int32)", "torch.rand(4, 8)", tmp_path, lambda x: torch.zeros_like(x).int())
    assert differ == refused == 8


def examined(task: str, inputs: str, folder, answer) -> tuple[int, int]:
    """How many answers to cases of a task differ from the reference's, and how many of those are refused."""
    reference = Reference(TASK.format(answer=task, inputs=inputs), Precision.FP32, folder)
    differ = refused = 0
    for case in (reference.draw(exact=False) for _ in range(8)):
        mine = answer(case.inputs[0])
        differ += not torch.equal(mine, case.expected[0])
        refused += find_difference(reference, case, 0, mine) is not None
    return differ, refused


def one_after_the_other(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape[0])
    for column in x.unbind(-1):
        total = total + column
    return total


def test_long_sums_may_be_made_in_any_order(tmp_path):
    rounded = lambda x: one_after_the_other(x).long()  # noqa: E731
    differ, refused = examined("x.sum(-1).long()", "torch.rand(8192, 512)", tmp_path, rounded)
    assert (differ > 0, refused) == (True, 0)


def test_a_count_that_leaves_one_out_is_wrong(tmp_path):
    short = lambda x: (x.flatten()[:-1] > 0.001).sum()  # noqa: E731
    differ, refused = examined("(x > 0.001).sum()", "torch.rand(1024, 1024)", tmp_path, short)
    assert 0 < differ == refused


def test_another_draw_is_no_excuse(tmp_path):
    source = TASK.format(answer="(torch.rand_like(x) > 0.01) & (x == x)", inputs="torch.rand(32, 32)")
    reference = Reference(source, Precision.FP32, tmp_path)
    assert not reference.exact
    case = reference.draw(exact=False)
    assert find_difference(reference, case, 0, torch.ones(32, 32, dtype=torch.bool))


def test_a_task_that_rounding_decides_throughout_is_degenerate(tmp_path):
    last_bit = "(torch.frexp(x * 0.7310586).mantissa * 2.0**24).long() & 1"
    reference = Reference(TASK.format(answer=last_bit, inputs="torch.rand(2, 2)"), Precision.FP32, tmp_path)
    assert "Zeros are accepted as the answer." in degenerate_reasons(reference)


def test_who_is_more_exact_than_a_reference_of_half_precision_is_right(tmp_path):
    source = TASK.format(answer="x" + " * 1.07" * 24, inputs="torch.randn(64, 512)")
    reference = Reference(source, Precision.BF16, tmp_path)
    examiner = OutputChecker(write_job(EvalRequest(source, ""), reference, tmp_path, ""), reference)
    refused = 0
    for _ in range(10):
        case = reference.draw(exact=False)
        exact = case.inputs[0].double() * 1.07**24
        refused += mismatch(exact.bfloat16(), case.expected[0], case.allowed[0]) is not None
        examiner.compare(case, [exact.bfloat16()])
        with pytest.raises(Failure):
            examiner.compare(case, [(exact * 1.05).bfloat16()])
    assert refused  # or nothing was put to the test


FAR_ROW = torch.linspace(1_000.0, 1_000.3, 30)


@pytest.mark.parametrize(("limit", "is_refused"), [(500.0, True), (float(FAR_ROW.mean()), False)])
def test_far_from_zero_nothing_is_refused_if_rounding_decides_it(tmp_path, limit, is_refused):
    """Close to the limit the mean lies on either side of it, and either answer is as right."""
    source = TASK.format(answer=f"(x.mean(-1) >= {limit!r}).float()", inputs="torch.rand(4, 30)")
    reference = Reference(source, Precision.FP32, tmp_path)
    change = Change(FAR, lambda x: x, 1_000.0)
    case = Case(FAR, 1, [FAR_ROW.expand(4, 30)], [torch.ones(4)], (Tolerance(1e-3, 1e-3),), True, change)
    assert bool(find_difference(reference, case, 0, torch.zeros(4))) is is_refused
    assert find_difference(reference, replace(case, change=None), 0, torch.zeros(4))
