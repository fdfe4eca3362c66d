"""Device kinds of a cluster: mixed pools are refused, and a part of a description picks one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stark.core.errors import EvaluatorError
from stark.evaluation.cluster.kinds import choose_kind, describe_kind
from stark_worker.protocol.report import DeviceFacts

H200 = DeviceFacts("NVIDIA H200", "cuda", "sm_90", 140.0, 4000.0, cores=132, toolchain={"driver": "580.95"})
OLDER = replace(H200, toolchain={"driver": "570.10"})
A100 = DeviceFacts("NVIDIA A100", "cuda", "sm_80", cores=108, toolchain={"driver": "580.95"})
POOL = [describe_kind(facts) for facts in (H200, H200, OLDER, A100)]


def test_a_kind_is_all_that_times_depend_on():
    assert describe_kind(replace(H200, bandwidth_gb_s=4001.0)) == describe_kind(H200)  # measured each time
    assert describe_kind(replace(H200, toolchain={"driver": "580.95", "python": "3.12"})) == describe_kind(H200)
    assert len(set(POOL)) == 3


def test_a_mixed_pool_is_refused_with_all_that_it_holds():
    with pytest.raises(EvaluatorError) as refused:
        choose_kind(POOL, None)
    for part in ("2 x NVIDIA H200", "driver 580.95", "1 x NVIDIA H200", "driver 570.10", "1 x NVIDIA A100"):
        assert part in refused.value.message
    assert "--device-kind" in refused.value.next_step


@pytest.mark.parametrize(
    ("wanted", "found"), [("a100", A100), ("H200, driver 570", OLDER), ("driver 580.95, h200", H200)]
)
def test_parts_of_a_description_pick_a_kind(wanted, found):
    assert choose_kind(POOL, wanted) == describe_kind(found)


@pytest.mark.parametrize(("wanted", "why"), [("H200", "several kinds"), ("B200", "no device of the kind 'B200'")])
def test_parts_that_fit_several_kinds_or_none_are_refused(wanted, why):
    with pytest.raises(EvaluatorError, match=why):
        choose_kind(POOL, wanted)


def test_an_equal_pool_needs_no_choice():
    assert choose_kind(POOL[:2], None) == POOL[0]
