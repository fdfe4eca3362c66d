"""What a version of KernelBench's protocol changes: the device's cache, and how a runtime is told."""

from __future__ import annotations

import pytest

from stark_worker.device import cuda
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


def test_a_report_says_what_was_done_about_the_cache():
    assert cuda.describe_cache(True) == "flushed before every call"
    assert cuda.describe_cache(False).startswith("not flushed, as in KernelBench v0.1")


def test_a_timing_has_the_mean_beside_the_median():
    timing = Timing((1.0, 2.0, 9.0))
    assert (timing.median_ms, timing.mean_ms) == (2.0, 4.0)
