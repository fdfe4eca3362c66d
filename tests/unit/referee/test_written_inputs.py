"""Inputs after a call: unchanged, or changed as the reference changes them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from stark_worker.correctness.reference import Reference
from stark_worker.protocol.errors import Failure, Outcome
from stark_worker.protocol.request import Precision, Score
from stark_worker.referee.check import OutputChecker

TASK = """
import torch

class Model(torch.nn.Module):
    def forward(self, average, x):
        average.mul_(0.9).add_(x, alpha=0.1)
        return average.sum(-1)

def get_inputs():
    return [torch.rand(8, 16), torch.rand(8, 16)]

def get_init_inputs():
    return []
"""


def after(folder: Path, average, score: Score = Score.VERIFIED, x_factor: float = 1.0) -> None:
    """Compare what a candidate left of its inputs."""
    reference = Reference(TASK, Precision.FP32, folder, score=score)
    case = reference.first
    inputs = [average(*case.inputs), case.inputs[1] * x_factor]
    OutputChecker(SimpleNamespace(weights={}), reference).compare_inputs(case, inputs)


def updated(average: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (average.double() * 0.9 + x.double() * 0.1).float()


def test_an_input_that_the_reference_updates_may_round_differently(tmp_path):
    after(tmp_path, updated)


@pytest.mark.parametrize("wrong", [lambda average, x: average, lambda average, x: updated(average, x) * 1.01])
def test_an_input_that_the_reference_updates_has_to_be_updated(tmp_path, wrong):
    with pytest.raises(Failure, match="Input 0, which the reference changes in place, differs") as failed:
        after(tmp_path, wrong)
    assert failed.value.outcome is Outcome.WRONG_RESULT


def test_kernelbench_compares_outputs_alone(tmp_path):
    after(tmp_path, lambda average, x: average, Score.KERNELBENCH)


@pytest.mark.parametrize("score", Score)
def test_an_input_that_the_reference_leaves_may_not_change(tmp_path, score):
    with pytest.raises(Failure, match="changed its input 1") as failed:
        after(tmp_path, updated, score, x_factor=1.001)
    assert failed.value.rule == "changed_inputs"
