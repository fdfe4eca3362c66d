"""Whether torch may use TF32 is one setting, off by default, that reaches every side of an evaluation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adversarial.processes import in_child
from stark.core.settings import EvaluationSettings
from stark.core.task import Task
from stark.evaluation.requests import make_request
from stark_worker.correctness.reference import Reference
from stark_worker.device import cuda
from stark_worker.protocol.request import EvalRequest, Precision, Target
from stark_worker.referee.calls import write_job
from stark_worker.scheduler.lane import referee_key

TASK = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x @ x

def get_inputs():
    return [torch.rand(8, 8)]

def get_init_inputs():
    return []
"""
GPU = EvalRequest(TASK, TASK, target=Target.CUDA)


@pytest.mark.parametrize("allowed", [False, True])
def test_the_setting_reaches_the_request(allowed):
    settings = EvaluationSettings(target=Target.CUDA, **({"tf32": True} if allowed else {}))
    assert make_request(Task("task", TASK), TASK, settings).tf32 is allowed


@pytest.mark.parametrize("allowed", [False, True])
def test_it_is_pinned_for_matrix_products_and_convolutions(allowed):
    def pinned():
        cuda.pin_precision(not allowed)
        cuda.pin_precision(allowed)
        return cuda.precision_settings()

    settings = in_child(pinned)
    of_gpu = {name: value for name, value in settings.items() if name.startswith("cud")}
    assert {value in ("tf32", True) for value in of_gpu.values()} == {allowed}, settings


def test_referees_are_not_shared_between_the_two():
    assert referee_key(GPU) != referee_key(replace(GPU, tf32=True))


@pytest.mark.parametrize(
    ("request_", "allowed", "words"),
    [
        (GPU, False, "fp32, torch without TF32"),
        (replace(GPU, tf32=True), True, "fp32, torch with TF32"),
        (replace(GPU, tf32=True, target=Target.CPU), False, "fp32, torch without TF32"),
        (replace(GPU, precision=Precision.BF16), False, "bf16, torch without TF32"),
    ],
)
def test_the_candidate_is_told_and_the_report_says_so(request_, allowed, words, tmp_path):
    job = write_job(request_, Reference(TASK, Precision.FP32, tmp_path), tmp_path, str(tmp_path))
    assert job.tf32 is allowed
    assert request_.arithmetic == words
