"""The labels of real candidates: what they are made of, what they take, and whether they are right elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from candidate_sources import forward
from conformance.evaluator import KERNEL, REFERENCE, RIGHT, TASK
from stark_worker.correctness.inputs import OTHER_DISTRIBUTIONS
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import Kernels
from stark_worker.protocol.request import Limits
from worker_fixture import running_worker


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with running_worker(tmp_path_factory.mktemp("shared") / "cache") as worker:
        yield worker.judge
        assert worker.left() == (set(), set())


@pytest.fixture
def label(judge):
    def with_labels(source: str, **changes):
        report = judge(replace(RIGHT, candidate_source=source, with_labels=True, **changes))
        assert report.outcome is Outcome.OK, report.log
        return report

    return with_labels


def test_a_kernel_of_ones_own(label):
    report = label(KERNEL, opponent_source=TASK)
    assert report.labels.kernels is Kernels.CUSTOM
    assert 0 < report.labels.own_share <= 1
    assert report.labels.precision == "fp32"
    assert [trial.outcome for trial in report.labels.other_shapes] == ["right"] * 3
    assert report.labels.first_call_ms > 0
    assert report.profile is None
    cases = 1 + OTHER_DISTRIBUTIONS
    assert len(set(report.seeds.values())) == 1 + 2 * cases  # of the weights, and of the inputs and calls of all cases


def test_a_library_call(label):
    labels = label(forward("return self.right(x)").replace("ctypes, ", "")).labels
    assert (labels.kernels, labels.own_share) == (Kernels.LIBRARY, 0.0)


@pytest.mark.parametrize(
    ("body", "came"),
    [
        ("return self.right(x) if x.shape == (16, 64) else torch.zeros_like(x)", "wrong result"),
        ("assert x.shape[0] == 16; return self.right(x)", "runtime error"),
        ("time.sleep(60 * (x.shape[0] != 16)); return self.right(x)", "timeout"),
        ("x.shape[0] == 16 or os._exit(1); return self.right(x)", "crash"),
    ],
)
def test_one_that_is_right_for_one_shape_alone_is_ok_and_labelled(label, body, came):
    labels = label(forward(body), limits=Limits(90.0, 4.0)).labels
    assert [trial.outcome for trial in labels.other_shapes] == [came] * 3


def test_the_interface_for_which_it_was_judged(label):
    interface = label(KERNEL).labels.interface
    assert (interface.shapes, interface.dtypes) == (((16, 64),), ("float32",))
    assert json.loads(interface.construct) == {"list": [{"value": 64}]}
    assert json.loads(interface.arguments) == {"list": [{"tensor": 0}]}
    assert json.loads(interface.result) == {"tensor": 0}
    assert interface.takes_weights
    assert interface.follows_weights
    assert (interface.is_random, interface.changes_state) == (False, False)


@pytest.mark.parametrize(
    ("source", "takes", "follows"),
    [
        (
            forward("self.kept = vars(self).get('kept', self.bias.clone()); return torch.relu(x * 2 + self.kept)"),
            True,
            False,
        ),
        (forward("return self.right(x)").replace("bias", "packed"), False, None),
    ],
    ids=["keeps what it derived", "makes them itself"],
)
def test_one_that_cannot_take_other_weights(label, source, takes, follows):
    interface = label(source).labels.interface
    assert (interface.takes_weights, interface.follows_weights) == (takes, follows)


def test_a_task_whose_calls_change_its_state(label):
    counting = "self.calls = vars(self).get('calls', 0) + 1; return torch.relu("
    task = TASK.replace("return torch.relu(", counting)
    assert label(KERNEL, task_source=task).labels.interface.changes_state


def test_memory_that_is_kept_and_memory_that_is_passed_through(label):
    keeping = "self.kept = getattr(self, 'kept', None) or [torch.ones(2**24)]"
    little, kept, passing = (
        label(forward(f"{first}; return self.right(x)")).labels.extra_memory_mb
        for first in ("pass", keeping, "torch.ones(2**24)")
    )
    assert little < 20
    assert 60 < kept < 90
    assert 60 < passing < 90


def test_low_precision_within_the_tolerance_asked_for(label):
    labels = label(forward("return self.right(x.bfloat16().float())"), atol=0.1, rtol=0.1).labels
    assert labels.precision == "bf16"


def test_without_being_asked_only_what_costs_nothing(judge):
    report = judge(REFERENCE)
    assert report.labels.precision == "fp32"
    assert report.labels.first_call_ms > 0
    assert (report.labels.kernels, report.labels.other_shapes, report.seeds) == (None, (), {})
    assert judge(replace(RIGHT, candidate_source="")).labels is None
