"""The arithmetic from work and peaks to a bound."""

from __future__ import annotations

import pytest

from stark_worker.protocol.bound import Arithmetic, Certainty, Limit, Peaks, Reason, Work
from stark_worker.roofline.speed_of_light import Conditions, Suspicion, make_bound, moving_ms, product_rate

GPU = Peaks("a GPU", 4000, 5000, 3000, 8000, 50 * 2**20, 60, 50, 400, 800, 750, launch_ms=0.002)
CPU = Peaks("a CPU", 20, 20, 20, 40, 2**20, fp32_tflops=0.1)
FLUSHED, WARM = Conditions(True), Conditions(False)
GB = 10**9


def bound_of(work: Work, peaks: Peaks = GPU, *suspicions: Suspicion, conditions: Conditions = FLUSHED):
    return make_bound(work, peaks, suspicions, conditions)


@pytest.mark.parametrize(
    ("read", "written", "ms"),
    [(5 * GB, 0, 1), (0, 3 * GB, 1), (2 * GB, 2 * GB, 1), (7 * GB, 2 * GB, 2), (0, 0, 0)],
)
def test_pairs_of_bytes_move_as_in_a_copy_and_the_rest_at_its_own_rate(read, written, ms):
    assert moving_ms(read, written, GPU, flushed=True) == pytest.approx(ms)


def test_without_a_flush_as_much_as_the_cache_holds_comes_from_it():
    assert moving_ms(2**20, 0, CPU, flushed=False) == pytest.approx(2**20 / 40e6)
    assert moving_ms(2**21, 2**21, CPU, flushed=False) == pytest.approx(2**20 / 40e6 + 3 * 2**20 / 20e6)


@pytest.mark.parametrize(
    ("kind", "tflops", "unit"),
    [
        (Arithmetic.FP32, 800 / 3, "by 3 in fp16"),
        (Arithmetic.TF32, 400, "tf32"),
        (Arithmetic.FP16, 800, "fp16"),
        (Arithmetic.FP64, 60, "fp64"),
    ],
)
def test_products_are_computed_in_the_fastest_way_that_keeps_their_precision(kind, tflops, unit):
    rate = product_rate(kind, GPU)
    assert rate is not None
    assert rate.tflops == pytest.approx(tflops)
    assert unit in rate.unit


def test_a_device_without_a_short_format_multiplies_in_its_own():
    assert product_rate(Arithmetic.FP32, CPU).tflops == 0.1
    assert product_rate(Arithmetic.TF32, CPU).tflops == 0.1
    assert product_rate(Arithmetic.BF16, CPU) is None


def test_the_slowest_resource_limits():
    moving = bound_of(Work(4 * GB, 0, 4 * GB, {"fp32": GB}))
    assert (moving.limit, moving.bound_ms, moving.doubts) == (Limit.MEMORY, pytest.approx(2), ())
    computing = bound_of(Work(GB, 0, GB, {"fp16": 8 * 10**12}))
    assert (computing.limit, computing.bound_ms) == (Limit.COMPUTE, pytest.approx(10))
    assert computing.certainty is Certainty.CERTAIN
    tiny = bound_of(Work(100, 0, 100, {}))
    assert (tiny.limit, tiny.bound_ms, tiny.certainty) == (Limit.LAUNCH, 0.002, Certainty.HINT)


def test_a_time_that_the_clock_cannot_tell_from_none_is_the_least():
    assert bound_of(Work(100, 0, 100, {}), conditions=Conditions(True, 0.5)).bound_ms == 0.5


def test_no_algebra_shortens_moving_inputs_and_outputs():
    bound = bound_of(Work(4 * GB, 40 * GB, 4 * GB, {"fp16": 8 * 10**12}))
    assert bound.floor_ms == pytest.approx(2)
    assert bound_of(Work(GB, 0, GB, {}), GPU, Suspicion(Reason.CONTROL)).floor_ms == 0
    gathered = bound_of(Work(5 * GB, 0, 4 * GB, {}), GPU, Suspicion(Reason.GATHER, bytes=GB))
    assert gathered.floor_ms == pytest.approx(2)


def test_a_doubt_about_little_of_the_work_is_none():
    work = Work(10 * GB, 0, 10 * GB, {"fp32": GB})
    assert bound_of(work, GPU, Suspicion(Reason.GATHER, bytes=GB // 10)).certainty is Certainty.CERTAIN
    assert bound_of(work, GPU, Suspicion(Reason.GATHER, bytes=9 * GB)).certainty is Certainty.HINT
    assert bound_of(work, GPU, Suspicion(Reason.ALGEBRA, operations=GB)).certainty is Certainty.CERTAIN
    busy = Work(GB, 0, GB, {"fp32": 10**13})
    assert bound_of(busy, GPU, Suspicion(Reason.ALGEBRA, operations=10**13)).certainty is Certainty.HINT


def test_operations_without_a_known_peak_are_a_doubt():
    bound = bound_of(Work(GB, 0, GB, {"other": GB}))
    assert [doubt.reason for doubt in bound.doubts] == [Reason.UNCOUNTED]


def test_the_cache_is_a_doubt_only_where_it_matters():
    assert bound_of(Work(10 * GB, 0, GB, {})).doubts == ()
    assert [doubt.reason for doubt in bound_of(Work(2**24, 0, 2**24, {})).doubts] == [Reason.CACHE]
    assert [doubt.reason for doubt in bound_of(Work(2**18, 0, 2**18, {}), CPU, conditions=WARM).doubts] == [
        Reason.CACHE
    ]
    assert bound_of(Work(GB, 0, GB, {}), CPU, conditions=WARM).doubts == ()
