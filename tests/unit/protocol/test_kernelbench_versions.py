"""What a version of KernelBench's protocol changes: the device's cache, and how a runtime is told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from stark_worker.device import cuda
from stark_worker.device.cuda_arena import DeviceMemory
from stark_worker.protocol.report import Timing
from stark_worker.protocol.request import EvalRequest, KernelBenchVersion, Score

V01, HEAD = KernelBenchVersion.V01, KernelBenchVersion.HEAD


@pytest.mark.parametrize(
    ("score", "version", "flushed"),
    [
        (Score.KERNELBENCH, V01, False),
        (Score.KERNELBENCH, HEAD, True),
        (Score.VERIFIED, V01, True),
        (Score.VERIFIED, HEAD, True),
    ],
)
def test_only_the_first_version_leaves_the_cache_as_it_is(score, version, flushed):
    assert EvalRequest("", "", score=score, kernelbench_version=version).flushes_cache is flushed


@pytest.mark.parametrize("flushed", [True, False])
def test_what_is_not_to_be_flushed_is_not(flushed, monkeypatch):
    """The steps before a call, on memory of the host."""
    memory = object.__new__(DeviceMemory)  # the arena itself needs a GPU
    memory._flush = torch.ones(4) if flushed else None
    memory._gate, memory.opened, memory._delay_ms = torch.zeros(1), 6, 0.0
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: done.append("held back"))
    memory._begun = SimpleNamespace(record=lambda: done.append("begun"), elapsed_time=lambda _: 0.25)
    memory._written = SimpleNamespace(record=lambda: done.append("recorded"), synchronize=lambda: done.append("waited"))
    assert memory.begin(lambda: done.append("written")).took_ms == 0.25
    assert done == ["held back", "begun", "written", "recorded", "waited"]
    assert (memory.opened, float(memory._gate)) == (7, 7.0)
    assert memory._flush is None or not memory._flush.any()


def test_a_report_says_what_was_done_about_the_cache():
    assert cuda.describe_cache(True, 1, 0) == "flushed before every call"
    for burst in (1, 8):
        assert cuda.describe_cache(False, burst, 0).startswith("not flushed, as in KernelBench v0.1")


def test_a_timing_has_the_mean_beside_the_median():
    timing = Timing((1.0, 2.0, 9.0))
    assert (timing.median_ms, timing.mean_ms) == (2.0, 4.0)
