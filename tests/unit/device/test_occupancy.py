"""The occupancy of kernels, compared with recorded profiles and with numbers worked out by hand."""

from __future__ import annotations

import pytest

from stark_worker.device.occupancy import MULTIPROCESSORS, occupancy

MANY = 1000.0  # blocks for each multiprocessor
H200, PROCESSORS = (9, 0), 132


@pytest.mark.parametrize(
    ("blocks", "threads", "registers", "shared", "percent"),
    [
        (229_376, 256, 48, 4096, 63),
        (114_688, 256, 96, 4096, 25),
        (114_688, 512, 54, 9216, 50),
        (114_688, 128, 168, 0, 19),
        (229_376, 128, 80, 2048, 38),
        (57_344, 128, 54, 2064, 56),
        (1_835_008, 128, 19, 0, 100),
        (576, 256, 32, 0, 55),
        (288, 256, 30, 0, 27),
        (128, 1024, 64, 12_548, 48),
        (64, 128, 31, 16, 3),
        (1024, 256, 32, 0, 97),
    ],
)
def test_small_blocks_are_as_the_profiler_estimates_them(blocks, threads, registers, shared, percent):
    found = occupancy(H200, threads, registers, shared, blocks / PROCESSORS)
    assert found.share * 100 == pytest.approx(percent, abs=0.6)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "share", "limit"),
    [
        (256, 95, 196_736, 8 / 64, "shared memory"),  # for these the profiler estimates none
        (128, 96, 98_432, 8 / 64, "shared memory"),
        (512, 64, 102_784, 32 / 64, "registers"),
        (128, 168, 50_176, 12 / 64, "registers"),
        (32, 16, 0, 32 / 64, "blocks"),
        (1024, 32, 0, 1.0, "full"),
        (768, 32, 0, 48 / 64, "registers"),
    ],
)
def test_what_limits_a_kernel(threads, registers, shared, share, limit):
    found = occupancy(H200, threads, registers, shared, MANY)
    assert (found.share, found.limit) == (share, limit)


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "warps"),
    [
        ((7, 0), 256, 32, 48 * 1024, 16),  # two blocks of 96 KB, without reserved memory
        ((7, 5), 1024, 32, 0, 32),
        ((8, 0), 128, 32, 41 * 1024, 12),  # the reserved kilobyte leaves room for three
        ((8, 6), 64, 32, 0, 32),
        ((8, 6), 256, 32, 0, 48),
        ((8, 9), 64, 32, 0, 48),
        ((10, 0), 256, 128, 0, 16),
        ((12, 0), 256, 32, 99 * 1024, 8),
        ((12, 0), 256, 32, 50 * 1024, 8),
    ],
)
def test_devices_hold_different_numbers_of_warps(capability, threads, registers, shared, warps):
    found = occupancy(capability, threads, registers, shared, MANY)
    assert found.share == warps / MULTIPROCESSORS[capability].warps


def test_an_unknown_device_has_no_occupancy():
    assert occupancy((3, 5), 256, 32, 0, MANY) is None
