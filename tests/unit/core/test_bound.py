"""The share of the speed of light, and the bound that follows better algebra."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stark.core.bound import speed_of_light, stored_speed_of_light
from stark.core.tree import Attempt, Node, Role
from stark_worker.protocol.bound import Bound, Doubt, Limit, Peaks, Reason, Work
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing

PEAKS = Peaks("a GPU", 4000, 4000, 4000)


def bound(ms: float = 1.0, floor_ms: float = 0.2, *doubts: Doubt) -> Bound:
    return Bound(ms, Limit.COMPUTE, 0.3, ms, floor_ms, Work(1, 1, 1, {}), PEAKS, {}, doubts)


def test_without_a_bound_there_is_no_share():
    assert speed_of_light(None, 1.0) is None
    assert stored_speed_of_light([]) is None


@pytest.mark.parametrize("best_ms", [None, 4.0, 1.0, 0.96])
def test_the_bound_is_the_references_until_a_kernel_clearly_beats_it(best_ms):
    limit = speed_of_light(bound(), best_ms)
    assert (limit.bound_ms, limit.is_followed, limit.is_certain) == (1.0, False, True)
    assert limit.share(2.0) == 0.5
    assert limit.share(None) is None


def test_the_bound_follows_shorter_algebra():
    limit = speed_of_light(bound(), 0.5)
    assert (limit.bound_ms, limit.is_followed) == (0.2, True)
    assert limit.share(0.5) == 0.4


@pytest.mark.parametrize("floor_ms", [0.0, 0.9])
def test_a_kernel_below_everything_that_is_known_has_no_share(floor_ms):
    limit = speed_of_light(bound(floor_ms=floor_ms), 0.5)
    assert (limit.bound_ms, limit.share(0.5), limit.is_certain) == (None, None, False)


def test_a_doubtful_bound_is_not_certain():
    doubtful = speed_of_light(bound(1.0, 0.2, Doubt(Reason.GATHER)), 2.0)
    assert not doubtful.is_certain
    assert doubtful.describe(2.0) == "50% of the bound (a hint)"
    assert speed_of_light(bound(), 2.0).describe(2.0) == "50% of the bound"
    assert doubtful.describe(None) == ""


def test_a_stored_run_has_the_bound_of_its_root_and_its_best_node():
    def node(number: int, ms: float, found: Bound | None = None) -> Node:
        report = EvalReport(Outcome.OK, Timing((ms,)), bound=found)
        return Node(
            number, 0 if number else None, Attempt(Role.SOLO if number else Role.REFERENCE, str(number), report)
        )

    limit = stored_speed_of_light([node(0, 5.0, bound()), node(1, 2.0), node(2, 0.4)])
    assert (limit.is_followed, limit.share(0.4)) == (True, 0.5)


def test_a_time_means_least_rates_of_moving_and_computing():
    work = Work(10**9, 0, 10**9, {"fp32": 4 * 10**9})
    limit = speed_of_light(replace(bound(), work=work), 2.0)
    assert str(limit.rates(2.0)) == "at least 1000 GB/s, 2 TFLOP/s"
    assert limit.rates(None) is None
    assert speed_of_light(replace(bound(), work=work), 0.5).rates(0.5) is None
