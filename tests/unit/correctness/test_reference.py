"""What the trusted side draws, how both models come to the same weights, and what state of a model does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from stark_worker.correctness import double_precision
from stark_worker.correctness.compare import Rules, Tolerance, mismatch
from stark_worker.correctness.inputs import (
    FAR,
    FEW,
    INTEGERS,
    NUMBERS,
    ONE_INTEGER,
    OTHER_DISTRIBUTIONS,
    RANDOM_SIGNS,
    TIMED_CALL,
    Change,
    changes,
    choose_timed,
    few_changes,
    kernelbench_seeds,
)
from stark_worker.correctness.model import forward
from stark_worker.correctness.reference import OWN_DISTRIBUTION, Case, Reference, TaskFault
from stark_worker.correctness.weights import construct_model, copy_weights
from stark_worker.protocol.request import KernelBenchVersion, Precision, Score

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

def get_init_inputs():
    return []
"""


def task(forward_body: str, inputs: str = "[torch.rand(16, 32)]", init_body: str = "pass") -> str:
    model = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x, *more):
        {forward}

def get_inputs():
    return {inputs}
"""
    return HEAD + model.format(init=init_body, forward=forward_body, inputs=inputs)


@pytest.fixture
def refer(tmp_path: Path):
    def make(source: str, precision: Precision = Precision.FP32, **options: object) -> Reference:
        return Reference(source, precision, tmp_path, **options)

    return make


def agrees(case: Case, outputs: list[torch.Tensor]) -> bool:
    return not any(map(mismatch, outputs, case.expected, case.allowed))


# --- which inputs


def test_a_candidate_meets_the_own_distribution_and_six_others_in_any_order(refer):
    reference = refer(task("return x * 2"))
    rounds = [[case.name for case in reference.cases()] for _ in range(6)]
    for names in rounds:
        assert names.count(OWN_DISTRIBUTION) == 1
        assert len(set(names)) == OTHER_DISTRIBUTIONS + 1
        assert {RANDOM_SIGNS, "inputs negated", FEW} < set(names)
        assert any(name.startswith(FAR) for name in names)
    assert len({names.index(OWN_DISTRIBUTION) for names in rounds} | {tuple(names) for names in rounds}) > 2


def test_no_two_draws_are_alike(refer):
    reference = refer(task("return x * 2"))
    cases = [*reference.cases(), *reference.cases(), reference.timed_case(), reference.timed_case()]
    inputs = {tuple(case.inputs[0].flatten().tolist()) for case in cases}
    assert len(inputs) == len(cases) - 1  # the first case is kept, and met twice


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4, 5), (0, 3)])
def test_every_change_keeps_shape_and_type_and_changes_something(shape):
    for dtype in (torch.float32, torch.bfloat16):
        values = torch.rand(shape, dtype=dtype) + 0.5  # a factor changes anything but zero
        for change in changes():
            changed = change.apply(values)
            assert (changed.shape, changed.dtype) == (values.shape, values.dtype)
            assert values.numel() < 2 or not torch.equal(changed, values)  # a single shift may round to nothing


def test_a_draw_outside_the_domain_of_the_task_is_not_used(refer):
    """Logarithms of negative numbers are NaN, and large inputs are refused by the task itself."""
    body = "assert float(x.max()) < 1.5; return torch.log(x)"
    reference = refer(task(body, "[torch.rand(16, 32) + 1e-3]"))
    for _ in range(3):
        cases = list(reference.cases())
        assert len(cases) == OTHER_DISTRIBUTIONS + 1
        for case in cases:
            assert case.expected[0].isfinite().all()
            assert "negated" not in case.name
    assert reference.left_out["inputs negated"] == "The outputs are not finite."
    assert reference.left_out["inputs scaled up by"].startswith("forward() fails: AssertionError")


def test_changes_that_failed_elsewhere_are_never_drawn(refer):
    unusable = {
        change.kind: "it ended the process"
        for change in (*changes(few={FEW}), *few_changes())
        if "shifted by" not in change.kind
    }
    reference = refer(task("return x * 2"), unusable=unusable)
    kinds = {case.change.kind for _ in range(9) for case in reference.cases() if case.change}
    assert kinds == {"inputs shifted by", "channels shifted by up to"}
    assert reference.left_out == unusable


@pytest.mark.parametrize("score", Score)
def test_a_task_whose_outputs_depend_on_the_seed_is_random(refer, score):
    assert not refer(task("return x * 2"), score=score).is_random
    assert refer(task("return F.dropout(x)"), score=score).is_random
    assert refer(task("return F.dropout(x @ torch.ones(32, 8))"), score=score).is_random  # no double precision


def test_little_noise_makes_a_task_random_and_differences_from_run_to_run_do_not(refer):
    assert refer(task("return x * (1.0 + 1e-6 * torch.randn_like(x))")).is_random
    noise = "torch.rand(x.shape, generator=torch.Generator().manual_seed(time.perf_counter_ns()))"
    assert not refer(task(f"import time; return x * (1.0 + 1e-6 * {noise})")).is_random


def test_integers_keep_their_range(refer):
    reference = refer(task("return x[more[0]]", "[torch.randn(8, 4), torch.randint(0, 8, (5,))]"))
    for case in [*reference.cases(), reference.timed_case()]:
        assert case.inputs[1].dtype is torch.int64
        assert 0 <= int(case.inputs[1].min()) <= int(case.inputs[1].max()) < 8


def test_tensors_are_moved_to_the_device(refer):
    """The only other device there is everywhere has no data, so the task may not look at any."""
    with pytest.raises(TaskFault, match="meta"):
        refer(task("return float(x.sum()) * x", "[torch.rand(4, device='cpu')]"), device="meta")


def test_far_from_zero_only_what_is_exactly_known_is_compared(refer):
    """This variance has no correct digit, ties decide integers, and a user's limits are for other inputs."""
    unstable = refer(task("return (x * x).mean(-1) - x.mean(-1) ** 2"))
    assert not any(case.name.startswith(FAR) for case in unstable.cases())
    assert "not exact enough" in unstable.left_out[FAR]
    for source, rules in ((task("return x.argmax(-1)"), Rules()), (task("return x * 2"), Rules(atol=0.5))):
        reference = refer(source, rules=rules)
        assert not any(case.name.startswith(FAR) for case in reference.cases())
        assert FAR not in reference.left_out


def test_infinities_that_are_always_there_leave_no_change_out(refer):
    mask = "torch.ones(16, 16).triu(1).bool()"
    reference = refer(task(f"return (x @ x.t()).masked_fill({mask}, float('-inf'))"))
    for case in reference.cases():
        assert torch.equal(case.expected[0].isinf(), torch.ones(16, 16).triu(1).bool())
    assert reference.left_out == {}
    elsewhere = refer(task("return torch.log(x)", "[torch.rand(16, 32) - 0.1]"))
    assert "inputs negated" not in [case.name for case in elsewhere.cases()]
    assert elsewhere.left_out["inputs negated"] == "The outputs are not finite."


# --- KernelBench's protocol


def test_kernelbench_draws_what_it_draws_everywhere(refer):
    source = task("return self.inner(x)", init_body="self.inner = nn.Linear(32, 32)")
    reference = refer(source, score=Score.KERNELBENCH)
    torch.manual_seed(42)
    seeds = [int(torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(5)]
    assert kernelbench_seeds() == seeds
    assert [case.input_seed for case in reference.cases()] == seeds
    for case in reference.cases():
        torch.manual_seed(case.input_seed)
        assert torch.equal(case.inputs[0], torch.rand(16, 32))
        assert case.allowed == (Tolerance(1e-4, 1e-4),)
    torch.manual_seed(42)
    inner = nn.Linear(32, 32)
    assert torch.equal(reference.model.inner.weight, inner.weight)
    assert reference.weights == {}
    assert not reference.exact
    assert reference.timed_case().input_seed not in seeds


def test_kernelbench_of_the_first_release_is_more_tolerant(refer):
    rules = Rules(kernelbench_version=KernelBenchVersion.V01)
    reference = refer(task("return x * 2"), score=Score.KERNELBENCH, rules=rules)
    assert {case.allowed for case in reference.cases()} == {(Tolerance(1e-2, 1e-2),)}


def test_tolerances_of_the_user(refer):
    reference = refer(task("return x * 2"), rules=Rules(atol=0.5, rtol=0.25))
    assert {case.allowed for case in reference.cases()} == {(Tolerance(0.5, 0.25),)}


# --- weights


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.norms = nn.ModuleList([nn.LayerNorm(6), nn.BatchNorm1d(6), nn.BatchNorm1d(6)])
        self.attention = nn.MultiheadAttention(6, 2)
        self.scale = nn.Parameter(torch.ones(6) * 0.1)
        self.later = nn.Parameter(torch.Tensor(6))
        self.later.data.fill_(1.0)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8), 2, enable_nested_tensor=False)
        self.gru = nn.GRU(6, 4)
        self.register_buffer("mask", torch.ones(6))
        self.packed = torch.cat([self.scale, self.norms[0].weight, self.norms[1].running_var]).detach().clone()


def test_no_parameter_stays_constant_and_masks_do():
    model = construct_model(Everything, [], 7, nontrivial=True)
    for name, values in model.state_dict().items():
        constant = len(values.unique()) == 1
        assert constant == (name == "mask" or "num_batches_tracked" in name), name
    assert bool((model.norms[1].running_var > 0).all())
    assert bool((model.norms[0].weight > 0).all())
    assert not torch.equal(model.norms[1].weight, model.norms[2].weight)


def test_both_sides_construct_the_same_even_what_they_pack():
    one, other = (construct_model(Everything, [], 7, nontrivial=True) for _ in range(2))
    plain = construct_model(Everything, [], 7, nontrivial=False)
    for name, values in one.state_dict().items():
        assert torch.equal(values, other.state_dict()[name]), name
    assert torch.equal(one.packed, other.packed)
    assert torch.equal(one.packed[:6], one.scale)
    assert torch.equal(one.linear.weight, plain.linear.weight)
    assert torch.equal(plain.norms[0].weight, torch.ones(6))


class Reordered(nn.Module):
    """A norm by other means and under other names, with something of another shape in between."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.zeros(3))
        self.gamma = nn.Parameter(torch.ones(6))
        self.beta = nn.Parameter(torch.zeros(6))


def test_a_constructor_of_its_own_comes_to_the_values_of_the_library():
    norm = construct_model(nn.LayerNorm, [6], 3, nontrivial=True)
    own = construct_model(Reordered, [], 3, nontrivial=True)
    assert torch.equal(own.gamma, norm.weight)
    assert torch.equal(own.beta, norm.bias)


def test_values_return_to_normal_afterwards():
    construct_model(Everything, [], 7, nontrivial=True)
    assert torch.equal(nn.LayerNorm(6).weight, torch.ones(6))


def test_weights_are_copied_where_the_names_agree():
    given = nn.Linear(5, 3).state_dict()
    named, other, foreign = nn.Linear(5, 3), nn.Sequential(nn.Linear(5, 3)), nn.Linear(3, 5)
    drawn = other[0].bias.clone()
    assert copy_weights(named.state_dict(), given) == "name"
    assert copy_weights(other.state_dict(), given) == "seed"
    assert copy_weights(foreign.state_dict(), given) == "seed"
    assert torch.equal(named.weight, given["weight"])
    assert torch.equal(other[0].bias, drawn)


def test_random_values_that_leave_the_domain_are_given_up(refer):
    reference = refer(
        task(
            "return torch.log(self.one - self.other) + x",
            init_body=(
                "self.one = nn.Parameter(torch.full((32,), 1.0)); self.other = nn.Parameter(torch.full((32,), 0.99))"
            ),
        )
    )
    assert not reference.nontrivial
    assert reference.first.expected[0].isfinite().all()


def test_infinities_of_a_mask_do_not_take_random_values_away(refer):
    body = "return self.norm(x).masked_fill(torch.ones(16, 32).triu(1).bool(), float('-inf'))"
    reference = refer(task(body, init_body="self.norm = nn.LayerNorm(32)"))
    assert reference.nontrivial
    assert not torch.equal(reference.model.norm.weight, torch.ones(32))


# --- state, precision, kinds of outputs


@pytest.mark.parametrize(
    ("body", "new"),
    [
        ("return x * 2", [True]),
        ("return x * 2, x[0]", [True, False]),
        ("return x.t()", [False]),
        ("return x.sum(0).expand(16, 32)", [False]),
        ("return self.kept[:8]", [False]),
        ("return self.held[:8]", [False]),
        ("return self.layer.weight.data", [False]),
    ],
)
def test_which_outputs_a_call_has_to_write(refer, body, new):
    init_body = "self.kept = torch.ones(16); self.register_buffer('held', torch.ones(16)); self.layer = nn.Linear(4, 4)"
    assert refer(task(body, init_body=init_body)).writes_output == new


def test_dropout_draws_the_same_mask_on_both_sides(refer):
    reference = refer(task("return self.drop(x)", init_body="self.drop = nn.Dropout(0.5)"))
    other = nn.Dropout(0.5)
    for case in [*reference.cases(), reference.timed_case()]:
        assert bool((case.expected[0] == 0).any())
        assert agrees(case, [forward(other, case.inputs, case.seed)])
        assert not agrees(case, [forward(other, case.inputs, case.seed + 1)])


def test_running_statistics_of_batch_norm_advance_alike_and_reach_no_output(refer):
    reference = refer(task("return self.norm(x)", init_body="self.norm = nn.BatchNorm1d(32)"))
    other = nn.BatchNorm1d(32)
    other.load_state_dict(reference.model.norm.state_dict())
    before = other.running_mean.clone()
    for case in reference.cases():
        assert agrees(case, [forward(other, case.inputs, case.seed)])
    assert not torch.equal(other.running_mean, before)
    other.running_mean.fill_(5.0)
    assert agrees(case, [forward(other, case.inputs, case.seed)])


def test_both_sides_advance_running_statistics_by_the_same_rule(refer):
    reference = refer(task("return self.norm(x)", init_body="self.norm = nn.BatchNorm1d(32)"))
    other = nn.BatchNorm1d(32)
    other.load_state_dict(reference.model.norm.state_dict())
    for _ in range(3):
        case = reference.draw()
        forward(other, case.inputs, case.seed)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(other, name), getattr(reference.model.norm, name))


@pytest.mark.parametrize("precision", Precision)
def test_the_reference_is_sharper_than_the_task(refer, precision):
    reference = refer(task("return self.inner(x)", init_body="self.inner = nn.Linear(32, 32)"), precision)
    assert reference.exact
    for case in reference.cases():
        assert case.inputs[0].dtype is reference.dtype
        assert case.expected[0].dtype is torch.float64
        assert agrees(case, reference.run(reference.model, case.inputs, case.seed))


def test_a_reference_that_does_not_fit_in_double_precision_is_compared_in_its_own(refer):
    reference = refer(task("return torch.empty(2**50) if x.dtype is torch.float64 else x * 2"))
    assert not reference.exact
    assert {case.expected[0].dtype for case in reference.cases()} == {torch.float32}


def test_double_precision_returns_once_there_is_memory_again(refer, monkeypatch):
    reference = refer(task("return x / 3"))
    with monkeypatch.context() as patch:
        patch.setattr(double_precision, "free_bytes", lambda _: 0)
        assert {case.expected[0].dtype for case in (reference.draw(), reference.draw())} == {torch.float32}
    assert reference.draw().expected[0].dtype is torch.float64


def test_inputs_that_the_reference_changes_are_known(refer):
    reference = refer(task("more[0].mul_(0.5); return x + more[0]", "[torch.rand(16, 32), torch.rand(16, 32)]"))
    for case in (reference.first, reference.timed_case()):
        assert list(case.written) == [1]
        assert torch.equal(case.written[1], case.inputs[1] * 0.5)
    assert refer(task("return x.clone().mul_(2)")).first.written == {}


def test_a_task_that_insists_on_its_precision_is_compared_in_it(refer):
    reference = refer(task("return x @ torch.ones(32, 8)"))
    assert not reference.exact
    assert reference.first.expected[0].dtype is torch.float32


def test_complex_outputs(refer):
    reference = refer(task("return torch.fft.rfft(x).conj()"))
    assert reference.outputs[0].dtype is torch.complex64
    for case in reference.cases():
        assert case.expected[0].dtype is torch.complex128
        assert agrees(case, [torch.fft.rfft(case.inputs[0]).conj()])
        assert not agrees(case, [torch.fft.rfft(case.inputs[0])])


def test_sparse_outputs_are_a_fault_of_the_task(refer):
    with pytest.raises(TaskFault, match="sparse"):
        refer(task("return x.to_sparse()"))


def test_nan_that_the_task_makes_of_its_own_inputs_is_expected(refer):
    reference = refer(task("return torch.log(x)", "[torch.randn(16, 32)]"))
    assert reference.first.expected[0].isnan().any()
    assert agrees(reference.first, [torch.log(reference.first.inputs[0])])
    assert not agrees(reference.first, [torch.log(reference.first.inputs[0].abs())])


def test_a_loss_is_judged_relative_to_its_value(refer):
    reference = refer(task("return F.mse_loss(x, more[0])", "[torch.rand(64, 64), torch.rand(64, 64)]"))
    for case in reference.cases():
        right = nn.functional.mse_loss(*case.inputs)
        assert agrees(case, [right])
        assert not agrees(case, [right * 1.001])


def test_changed_inputs_keep_the_memory_order_of_the_tasks_own(tmp_path):
    source = (
        "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n\n\n"
        "def get_inputs():\n    return [torch.randn(8, 32).t()]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    reference = Reference(source, Precision.FP32, tmp_path)
    strides = {case.inputs[0].stride() for case in (*reference.cases(), *reference.cases(), reference.timed_case())}
    assert strides == {(1, 32)}


def test_a_timed_call_can_be_answered_after_it_was_made(refer):
    reference = refer(task("return torch.softmax(x, dim=1)"))
    questions = [reference.timed_inputs() for _ in range(2)]
    assert not any(question.expected for question in questions)
    assert not torch.equal(questions[0].inputs[0], questions[1].inputs[0])
    answered = reference.answer(questions[0])
    assert answered is not None
    assert agrees(answered, [torch.softmax(answered.inputs[0], dim=1)])
    assert not agrees(answered, [torch.softmax(questions[1].inputs[0], dim=1)])


def test_a_timed_call_outside_of_what_the_task_is_defined_for_has_no_answer(refer):
    reference = refer(task("return torch.sqrt(x)"))
    negative = Case("inputs negated", 1, [-torch.rand(16, 32)], [], change=Change("inputs negated", torch.neg))
    assert reference.answer(negative) is None


@pytest.mark.parametrize(
    "mask", ["torch.ones(16, 32).tril().bool()", "torch.ones(16, 32).bool()", "torch.arange(16)[:, None] % 3"]
)
def test_a_fixed_mask_has_other_values_when_checked_and_in_every_timed_call(refer, mask):
    """A candidate could leave a mask unread that is the same in every call, or look at a sample of it."""
    reference = refer(task("return x * more[0]", f"[torch.rand(16, 32), {mask}]"))
    own = reference.first.inputs[1]
    changed = [mask for mask in (case.inputs[1] for case in reference.cases()) if not torch.equal(mask, own)]
    assert len(changed) == 1
    assert changed[0].dtype is own.dtype
    assert not any(torch.equal(reference.timed_case().inputs[1], own) for _ in range(20))


def test_a_single_integer_that_is_the_same_in_every_call_moves(refer):
    reference = refer(task("return x[:, : more[0]].sum(1)", "[torch.rand(16, 32), torch.tensor(8)]"))
    moved = [int(case.inputs[1]) for case in [*reference.cases(), *(reference.timed_case() for _ in range(9))]]
    assert set(moved) == {7, 8}
    assert moved[-9:] == [7] * 9


def test_the_report_names_an_integer_that_never_changes(refer):
    """The reference takes this one number alone. The mask changes all the same."""
    inputs = "[torch.rand(16, 32), torch.tensor([32]), torch.ones(16, 32).bool()]"
    reference = refer(task("return x.view(-1, int(more[0])) * more[1]", inputs))
    cases = [*reference.cases(), reference.timed_case()]
    assert {int(case.inputs[1]) for case in cases} == {32}
    assert reference.left_out[ONE_INTEGER].startswith("Input 1 never changes. forward() fails: RuntimeError")
    assert INTEGERS not in reference.left_out
    assert not cases[-1].inputs[2].all()


def test_outputs_of_other_shapes_are_not_compared(refer):
    reference = refer(task("return x[:, : more[0]] * 2", "[torch.rand(16, 32), torch.tensor(8)]"))
    assert {case.expected[0].shape for case in reference.cases()} == {(16, 8)}
    assert reference.left_out[ONE_INTEGER] == "Input 1 never changes. The outputs have other shapes."


def test_zeros_of_a_fixed_input_are_replaced_at_few_places(refer):
    reference = refer(task("return x * more[0]", "[torch.rand(64, 64), torch.eye(64)]"))
    numbers = next(change for change in few_changes() if change.kind == NUMBERS)
    counts = [int((reference.draw(numbers).inputs[1] != torch.eye(64)).count_nonzero()) for _ in range(20)]
    assert set(counts) <= {1, 2, 3, 4}


def test_most_timed_calls_have_signs_that_no_candidate_can_foresee():
    """The median of their times must not be one of inputs that a candidate recognises."""
    usable = changes()
    drawn = [choose_timed(usable, fixed=False).kind for _ in range(2_000)]
    assert 0.4 < drawn.count(RANDOM_SIGNS) / len(drawn) < 0.6
    others = [kind for kind in drawn if kind not in (RANDOM_SIGNS, TIMED_CALL)]
    assert 0.08 < len(others) / len(drawn) < 0.2
    assert {choose_timed([], fixed=False).kind for _ in range(50)} == {TIMED_CALL}
