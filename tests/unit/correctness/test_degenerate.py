"""Tasks whose check accepts answers that compute nothing are told from those that test something."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from stark_worker.correctness.compare import Rules
from stark_worker.correctness.degenerate import degenerate_reasons
from stark_worker.correctness.reference import Reference
from stark_worker.protocol.errors import Outcome, TaskFault
from stark_worker.protocol.report import EvalReport, Timing
from stark_worker.protocol.request import KernelBenchVersion, Precision, Score
from stark_worker.referee.referee import with_degenerate_reasons

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x, *more):
        return {forward}

def get_inputs():
    return {inputs}

def get_init_inputs():
    return []
"""

U = "[torch.rand(64, 64)]"
ZEROS, MEAN, OTHER, INPUT, AGAIN = "Zeros", "The mean", "The answer for another input", "Input 0", "The reference's own"


def reasons(folder: Path, forward: str, inputs: str = U, init: str = "pass", **options: object) -> list[str]:
    source = TASK.format(forward=forward, inputs=inputs, init=init)
    return degenerate_reasons(Reference(source, Precision.FP32, folder, **options))


def starts(sentences: list[str], *beginnings: str) -> bool:
    pairs = zip(sentences, beginnings, strict=False)
    return len(sentences) == len(beginnings) and all(sentence.startswith(start) for sentence, start in pairs)


KERNELBENCH = {
    "relu of what is positive": ("torch.relu(x)", U, "pass", (INPUT,)),
    "mean of a norm": ("self.norm(x).mean(dim=1)", U, "self.norm = nn.LayerNorm(64)", (ZEROS, MEAN, OTHER)),
    "softmax of long rows": ("x.softmax(dim=1)", "[torch.rand(4, 200_000)]", "pass", (ZEROS, MEAN, OTHER)),
    "matrix product": ("x @ more[0]", "[torch.rand(64, 64), torch.rand(64, 64)]", "pass", ()),
    "layer": ("self.inner(x)", U, "self.inner = nn.Linear(64, 64)", ()),
}


@pytest.mark.parametrize("name", KERNELBENCH)
def test_by_the_rules_of_kernelbench(name, tmp_path):
    forward, inputs, init, expected = KERNELBENCH[name]
    found = reasons(tmp_path, forward, inputs, init, score=Score.KERNELBENCH)
    assert starts(found, *expected), found


def test_the_first_release_of_kernelbench_accepts_more(tmp_path):
    forward = "x.softmax(dim=1)"
    assert reasons(tmp_path, forward, "[torch.rand(8, 512)]", score=Score.KERNELBENCH) == []
    rules = Rules(kernelbench_version=KernelBenchVersion.V01)
    assert starts(
        reasons(tmp_path, forward, "[torch.rand(8, 512)]", score=Score.KERNELBENCH, rules=rules), ZEROS, MEAN, OTHER
    )


@pytest.mark.parametrize("name", KERNELBENCH)
def test_verified_repairs_what_is_not_constant_by_its_structure(name, tmp_path):
    forward, inputs, init, _ = KERNELBENCH[name]
    assert reasons(tmp_path, forward, inputs, init) == []


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        ("x * 0", (ZEROS, MEAN, OTHER)),
        ("x.amax(dim=1, keepdim=True).softmax(dim=1)", (MEAN, OTHER)),
        ("torch.ones_like(x, dtype=torch.int64)", (MEAN, OTHER)),
        ("x + 0", (INPUT,)),
        ("torch.arange(64.0)", (OTHER,)),
        ("torch.fft.fft(x) * 0", (ZEROS, MEAN, OTHER)),
    ],
)
def test_what_is_constant_by_its_structure_is_degenerate_by_any_rules(forward, expected, tmp_path):
    found = reasons(tmp_path, forward)
    assert starts(found, *expected), found


@pytest.mark.parametrize("forward", ["x.sum()", "x.argmax(dim=1)", "(x > 0.5, x.cumsum(dim=1))", "torch.fft.fft(x)"])
def test_losses_indices_and_several_outputs_are_admitted(forward, tmp_path):
    assert reasons(tmp_path, forward) == []


def test_a_task_that_remembers_earlier_calls_cannot_be_judged(tmp_path):
    found = reasons(tmp_path, "x + self.count.add_(1)", init="self.register_buffer('count', torch.zeros(()))")
    assert starts(found, AGAIN), found


def test_tolerances_of_the_user_decide(tmp_path):
    assert starts(reasons(tmp_path, "x @ x", rules=Rules(atol=1e9)), ZEROS, MEAN, OTHER, INPUT)


class Watched(Reference):
    """Counts the cases that are in memory whenever another one is drawn, but for the first, which is kept."""

    drawn: ClassVar[list[weakref.ref[torch.Tensor]]] = []
    most = 0

    def answer(self, case, exact=False):
        self.most = max(self.most, sum(each() is not None for each in self.drawn))
        self.drawn.append(weakref.ref(case.inputs[0]))
        return super().answer(case, exact)


@pytest.mark.parametrize("forward", ["x * 0", "x * 1"])  # degenerate, so that no case is left out
def test_one_case_at_a_time_is_in_memory(forward, tmp_path):
    reference = Watched(TASK.format(forward=forward, inputs=U, init="pass"), Precision.FP32, tmp_path)
    reference.drawn, reference.most = [], 0
    degenerate_reasons(reference)
    assert len(reference.drawn) > 1
    assert reference.most == 0


class Exhausted(Reference):
    """Of a device whose memory is used up once the task has been loaded."""

    def cases(self):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 6.40 GiB.")


def test_memory_that_does_not_suffice_is_the_fault_of_task_and_machine(tmp_path):
    reference = Exhausted(TASK.format(forward="x * 2", inputs=U, init="pass"), Precision.FP32, tmp_path)
    with pytest.raises(TaskFault, match="take more memory than this device has"):
        with_degenerate_reasons(EvalReport(Outcome.OK, Timing((1.0,))), reference)


def test_an_input_for_which_there_is_no_memory_is_so_too(tmp_path):
    reference = Reference(TASK.format(forward="x * 2", inputs=U, init="pass"), Precision.FP32, tmp_path)
    reference._module.get_inputs = lambda: [torch.empty(2**50)]  # what the allocator itself says of too much
    with pytest.raises(TaskFault, match="take more memory than this device has"):
        with_degenerate_reasons(EvalReport(Outcome.OK, Timing((1.0,))), reference)
