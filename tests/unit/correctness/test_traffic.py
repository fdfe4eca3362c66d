"""The bytes that a call has to move, found by changing its inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stark_worker.correctness.reference import Reference
from stark_worker.correctness.traffic import CHANCE, MAX_PROBES, MIN_PROBES, certain_bytes
from stark_worker.protocol.request import Precision

TASK = """
import torch
from torch import nn
from torch.nn import functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.calls = 0

    def forward(self, x, *more):
        {forward}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""
X = "torch.rand(64, 32)"
BYTES = 4 * 64 * 32
FEWEST, MOST = (CHANCE ** (1 / count) for count in (MIN_PROBES, MAX_PROBES))


def traffic(folder: Path, forward: str, inputs: str = X):
    return certain_bytes(Reference(TASK.format(forward=forward, inputs=inputs), Precision.FP32, folder))


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        ("return x * 2", X),
        ("return x.t()[:, ::1] + 1", X),
        ("return torch.relu(x)", "torch.randn(64, 32)"),
        ("return x.clamp(-0.5, 0.5)", "torch.randn(64, 32)"),
        ("return F.max_pool1d(x, 2)", X),
        ("return torch.softmax(x, -1)", X),
        ("x += 1; return x * 2", X),
        ("return F.binary_cross_entropy(x, more[0])", f"{X}, {X}"),
        ("return self.layer.weight[x]", "torch.randint(0, 32, (64, 32))"),
    ],
)
def test_inputs_that_change_the_output_have_to_be_read(tmp_path, forward, inputs):
    read = max(traffic(tmp_path, forward, inputs).read for _ in range(2))  # a window may hold the largest value
    size = BYTES * (2 if "int" in inputs or "," in inputs.replace("64, 32", "") else 1)
    assert FEWEST * size - 2 <= read <= MOST * size


@pytest.mark.parametrize(
    "forward", ["return x[:8] * 2", "return self.layer(more[0])", "return x * 0", "return x.amin()"]
)
def test_inputs_that_do_not_are_not(tmp_path, forward):
    for _ in range(3):
        assert traffic(tmp_path, forward, f"{X}, torch.rand(1, 32)").read < BYTES * 0.3


def test_masked_values_need_not_be_read(tmp_path):
    found = [traffic(tmp_path, "return torch.triu(x)", "torch.rand(64, 64)").read for _ in range(5)]
    assert found.count(0) >= 3


def test_each_byte_is_counted_once(tmp_path):
    found = traffic(tmp_path, "return self.layer(x)")
    weights = 4 * (32 * 32 + 32)
    assert found.written == BYTES
    assert found.written + found.read + found.others == 2 * BYTES + weights


@pytest.mark.parametrize(
    ("forward", "written"),
    [
        ("return x * 2", BYTES),
        ("return x * 2, x.sum()", BYTES),
        ("return x[0], x.sum()", 4),
        ("return x.sum(), torch.softmax(self.layer.weight, -1)", 4),
        ("return x.t()", 0),
    ],
)
def test_what_is_new_and_depends_on_the_inputs_has_to_be_written(tmp_path, forward, written):
    assert traffic(tmp_path, forward).written == written


def test_nothing_is_certain_if_outputs_vary_by_themselves(tmp_path):
    assert traffic(tmp_path, "self.calls += 1; return x * self.calls").read == 0


def test_random_masks_follow_the_seed_and_hide_what_they_drop(tmp_path):
    assert traffic(tmp_path, "return F.dropout(x, 0.5)").read < BYTES * 0.5
