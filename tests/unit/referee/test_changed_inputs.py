"""Changed inputs that end a process are found in one that may end."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from stark_worker.correctness.inputs import changes
from stark_worker.correctness.reference import Reference
from stark_worker.protocol.request import Precision
from stark_worker.referee import changed_inputs
from stark_worker.referee.changed_inputs import ChangeTester, has_risky_operations

TASK = """
import os, time
import torch
from torch import nn
from torch.nn import functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32), nn.LayerNorm(32), nn.GRU(32, 8)])
        self.conv = nn.Sequential(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.GELU(), nn.MaxPool1d(2))

    def forward(self, x):
        {forward}

def get_inputs():
    return [torch.rand(8, 4, 32)]

def get_init_inputs():
    return []
"""
KINDS = {change.kind for change in changes()}


def make(forward: str, folder: Path) -> Reference:
    return Reference(TASK.format(forward=forward), Precision.FP32, folder)


@pytest.fixture
def failing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def find(forward: str) -> dict[str, str]:
        tester = ChangeTester(partial(make, forward))
        try:
            return tester.find_failing()
        finally:
            tester.close()
            assert not list(tmp_path.iterdir())

    return find


def test_a_reference_that_takes_everything_fails_nowhere(failing):
    assert failing("return x * 2") == {}


def test_changes_that_end_the_process_are_named_and_the_others_tried(failing):
    found = failing("os._exit(3) if float(x.min()) < 0 or float(x.max()) > 1 else None; return x.log()")
    assert found == dict.fromkeys(KINDS - {"inputs scaled down by"}, "forward() ended the process.")


def test_errors_and_infinities_come_with_their_reasons(failing):
    found = failing("assert float(x.max()) < 10; return torch.sqrt(x)")
    assert found["a few inputs scaled by"].startswith("forward() fails: AssertionError")
    assert found["inputs negated"] == "The outputs are not finite."
    assert "inputs scaled up by" not in found


def test_one_that_does_not_end_is_ended(failing, monkeypatch):
    monkeypatch.setattr(changed_inputs, "TRY_S", 6.0)
    found = failing("time.sleep(60) if float(x.max()) <= 0 else None; return x")
    assert found == {"inputs negated": "forward() did not end."}


@pytest.mark.parametrize("make_reference", [lambda _: os._exit(1), lambda _: os.kill(os.getppid(), 9)])
def test_a_tester_that_does_not_work_knows_of_nothing(tmp_path, monkeypatch, make_reference):
    monkeypatch.chdir(tmp_path)
    tester = ChangeTester(make_reference)
    assert tester.find_failing() == {}
    tester.close()


def test_a_tester_that_is_not_needed_ends_when_it_is_closed():
    tester = ChangeTester(partial(make, ""))
    tester.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(tester._process, os.WNOHANG)


@pytest.mark.parametrize(
    ("forward", "risky"),
    [
        ("return x * 2", False),
        ("return self.layers[1](torch.relu(self.layers[0](x))).softmax(-1)", False),
        ("return self.conv(x)", False),
        ("return F.scaled_dot_product_attention(x, x, x)", False),
        ("return torch.cat([x.cumsum(1), x.flip(0)]).mean(-1), x.amax(1), x.var(0), x.norm(dim=1)", False),
        (
            "return F.mse_loss(x, x + 1) + F.kl_div(x, x.exp(), reduction='batchmean')",
            False,
        ),
        ("return F.binary_cross_entropy(x.clamp(0, 1), x.clamp(0, 1))", True),
        ("return self.layers[0].weight[x.long()]", True),
        ("return F.embedding(x.long(), self.layers[0].weight)", True),
        ("return x.gather(0, x.long())", True),
        ("return F.one_hot(x.long(), 2) + 1.0", True),
        ("return x * 2 if float(x.sum()) > 0 else x", True),
        ("return torch.bernoulli(x)", True),
    ],
)
def test_operations_that_may_assert_are_risky(tmp_path, forward, risky):
    assert has_risky_operations(make(forward, tmp_path)) is risky
