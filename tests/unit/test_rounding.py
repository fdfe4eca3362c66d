"""What rounding alone decides, and what it does not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.admission import admit
from stark_worker.compare import mismatch
from stark_worker.examiner import Examiner
from stark_worker.job import write_job
from stark_worker.protocol import EvalRequest, Precision
from stark_worker.reference import Case, Reference
from stark_worker.rounding import NUDGES, difference, key, nudge
from stark_worker.sandbox import Failure

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
ONE_UP, UNITS = 1.0 + 2.0**-23, 4.0
TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return {answer}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""


@given(st.lists(st.floats(0.0625, 4096.0, width=16), min_size=1, max_size=50), st.sampled_from(DTYPES), st.booleans())
def test_values_are_off_by_rounding_and_equal_ones_stay_equal(values, dtype, negative):
    tensor = torch.tensor(values, dtype=dtype) * (-1 if negative else 1)
    one, other = nudged(torch.stack([tensor, tensor]))
    assert torch.equal(one, other)
    off = (one.double() / tensor.double() - 1.0).abs()
    assert off.max() <= (UNITS + 1) * torch.finfo(dtype).eps  # and the rounding of the result itself


def nudged(tensor: torch.Tensor) -> torch.Tensor:
    nudge(copied := tensor.clone(), key(), UNITS)
    return copied


def test_nearly_equal_values_change_places_in_some_of_them():
    near = torch.tensor([1.0, ONE_UP])
    assert {int(nudged(near).argmax()) for _ in range(NUDGES)} == {0, 1}


def test_integers_are_left_alone_and_complex_numbers_are_not():
    tensor = torch.arange(100)
    assert torch.equal(nudged(tensor), tensor)
    assert not torch.equal(nudged(tensor * 1j), tensor * 1j)


@pytest.fixture
def accepts(tmp_path):
    """Whether an answer of a candidate is accepted where the reference has another."""

    def judge(answer: str, values: list[float] | list[int], said: int | bool) -> bool:
        row = torch.tensor([values])
        inputs = "torch.rand(1, 4)" if row.is_floating_point() else "torch.randint(9, (1, 4))"
        source = TASK.format(answer=answer, inputs=inputs)
        reference = Reference(source, Precision.FP32, tmp_path)
        examiner = Examiner(write_job(EvalRequest(source, ""), reference, tmp_path, ""), reference)
        case = reference.answered(Case("a case", 1, [row], []))
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
    assert accepts("x.sum(-1) > 4.0", [1.0, 1.0, 1.0, 1.0], said=True)
    assert accepts("x.sum(-1) > x.max().item() * 4.0", [1.0, 1.0, 1.0, 1.0], said=True)


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


@pytest.mark.parametrize("chosen", ["x", "x.relu()", "torch.cat([x, -x], -1)[:, :4]", "x.t().contiguous().t()"])
def test_where_nothing_is_rounded_nothing_is_excused(accepts, chosen):
    assert not accepts(f"({chosen}).argmax(-1)", [0.5, ONE_UP, 1.0, 0.25], said=2)
    assert not accepts(f"(({chosen}) > 1.0).sum(-1)", [0.5, ONE_UP, 1.0, 0.25], said=0)


def test_integers_of_integers_are_exact(accepts):
    assert not accepts("x.sum(-1)", [1, 2, 3, 4], said=11)
    assert not accepts("(x * 1000.0).long().sum(-1)", [1.5, 2.5, 3.5, 4.5], said=12_001)


@pytest.mark.parametrize("answer", ["x.view(torch.int32)[0, :1]", "x[x > 0.4].long()[:1]"])
def test_an_answer_of_another_shape_in_double_precision_is_no_excuse(accepts, answer):
    assert not accepts(answer, [0.5, 0.75, 0.625, 0.875], said=7)


def examined(task: str, inputs: str, folder, answer) -> tuple[int, int]:
    """How many answers to cases of a task differ from the reference's, and how many of those are refused."""
    reference = Reference(TASK.format(answer=task, inputs=inputs), Precision.FP32, folder)
    differ = refused = 0
    for case in reference.own_cases(8):
        mine = answer(case.inputs[0])
        differ += not torch.equal(mine, case.expected[0])
        refused += difference(reference, case, 0, mine) is not None
    return differ, refused


def one_after_the_other(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape[0])
    for column in x.unbind(-1):
        total = total + column
    return total


def test_long_sums_may_be_made_in_any_order(tmp_path):
    rounded = lambda x: one_after_the_other(x).long()  # noqa: E731
    differ, refused = examined("x.sum(-1).long()", "torch.rand(2048, 2048)", tmp_path, rounded)
    assert (differ > 0, refused) == (True, 0)


def test_a_count_that_leaves_one_out_is_wrong(tmp_path):
    short = lambda x: (x.flatten()[:-1] > 0.001).sum()  # noqa: E731
    differ, refused = examined("(x > 0.001).sum()", "torch.rand(1024, 1024)", tmp_path, short)
    assert 0 < differ == refused


def test_another_draw_is_no_excuse(tmp_path):
    source = TASK.format(answer="(torch.rand_like(x) > 0.01) & (x == x)", inputs="torch.rand(32, 32)")
    reference = Reference(source, Precision.FP32, tmp_path)
    assert not reference.exact
    (case,) = reference.own_cases(1)
    assert difference(reference, case, 0, torch.ones(32, 32, dtype=torch.bool))


def test_a_task_that_rounding_decides_throughout_is_degenerate(tmp_path):
    last_bit = "(torch.frexp(x).mantissa * 2.0**24).long() & 1"
    reference = Reference(TASK.format(answer=last_bit, inputs="torch.rand(2, 2)"), Precision.FP32, tmp_path)
    assert "Zeros are accepted as the answer." in admit(reference)


def test_who_is_more_exact_than_a_reference_of_half_precision_is_right(tmp_path):
    source = TASK.format(answer="x" + " * 1.07" * 24, inputs="torch.randn(64, 512)")
    reference = Reference(source, Precision.BF16, tmp_path)
    examiner = Examiner(write_job(EvalRequest(source, ""), reference, tmp_path, ""), reference)
    refused = 0
    for _ in range(10):
        (case,) = reference.own_cases(1)
        exact = case.inputs[0].double() * 1.07**24
        refused += mismatch(exact.bfloat16(), case.expected[0], case.allowed[0]) is not None
        examiner.compare(case, [exact.bfloat16()])
        with pytest.raises(Failure):
            examiner.compare(case, [(exact * 1.05).bfloat16()])
    assert refused  # or nothing was put to the test
