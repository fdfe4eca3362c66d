"""The contract of every Evaluator. Run it on an evaluator of your own:

    class TestMine(EvaluatorConformance):
        @pytest.fixture
        def make(self):
            return lambda: MyEvaluator(EvaluationSettings())

``make()`` gives a fresh evaluator for the cpu target, not yet entered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from stark.core.errors import TaskError
from stark.core.interfaces import Evaluator
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import Entry, EvalRequest, Limits

TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return torch.relu(x * 2.0 + self.bias)


def get_inputs():
    return [torch.randn(16, 64)]


def get_init_inputs():
    return [64]
"""

KERNEL = '''
import ctypes
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <cstdint>
extern "C" void run(const float* x, const float* bias, float* out, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows * columns; ++i) {
        const float h = x[i] * 2.0f + bias[i % columns];
        out[i] = h > 0.0f ? h : 0.0f;
    }
}
"""

library = ctypes.CDLL(
    load_inline(name="kernel", cpp_sources=CPP, no_implicit_headers=True, is_python_module=False)
)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x):
        out = torch.empty_like(x)
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, self.bias, out)]
        library.run(*pointers, *map(ctypes.c_int64, x.shape))
        return out
'''

LIMITS = Limits(build_s=90.0, run_s=60.0)
REFERENCE = EvalRequest(TASK, TASK, Entry.REFERENCE, limits=LIMITS)
RIGHT = EvalRequest(TASK, KERNEL, limits=LIMITS)
WRONG = EvalRequest(TASK, KERNEL.replace("2.0f", "2.1f"), limits=LIMITS)
BROKEN_TASK = EvalRequest(TASK.replace("torch.randn(16, 64)", "1 / 0"), KERNEL, limits=LIMITS)


class EvaluatorConformance:
    """Inherit from it and provide ``make``."""

    @pytest.fixture
    def make(self) -> Callable[[], Evaluator]:
        raise NotImplementedError("give a fixture `make`")

    def test_reports_are_values_for_good_and_bad_candidates(self, make):
        reference, right, wrong = asyncio.run(evaluate(make(), REFERENCE, RIGHT, WRONG))
        assert (reference.outcome, right.outcome) == (Outcome.OK, Outcome.OK), (reference.log, right.log)
        assert reference.timing
        assert right.timing
        assert right.timing.median_ms > 0
        assert wrong.outcome is Outcome.WRONG_RESULT
        assert wrong.timing is None
        assert "expected" in wrong.log

    def test_many_requests_at_once_all_get_their_own_report(self, make):
        evaluator = make()
        count = 9
        requests = [replace(RIGHT, candidate_source=f"raise ValueError('number {n}')") for n in range(count)]
        reports = asyncio.run(evaluate_at_once(evaluator, *requests))
        assert [report.outcome for report in reports] == [Outcome.COMPILE_ERROR] * count
        assert all(f"number {n}" in report.log for n, report in enumerate(reports))

    def test_a_task_that_does_not_work_is_no_score_of_the_candidate(self, make):
        with pytest.raises(TaskError, match="get_inputs"):
            asyncio.run(evaluate(make(), BROKEN_TASK))

    def test_the_device_is_named(self, make):
        facts = asyncio.run(device(make()))
        assert facts.name
        assert facts.kind == "cpu"


async def evaluate(evaluator: Evaluator, *requests: EvalRequest) -> list[EvalReport]:
    async with evaluator:
        return [await evaluator.evaluate(request) for request in requests]


async def evaluate_at_once(evaluator: Evaluator, *requests: EvalRequest) -> list[EvalReport]:
    async with evaluator:
        return await asyncio.gather(*map(evaluator.evaluate, requests))


async def device(evaluator: Evaluator) -> DeviceFacts:
    async with evaluator:
        return await evaluator.device()
