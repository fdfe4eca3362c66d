"""A GPU is known by what its driver says, so that processes that name it otherwise take turns. Run as the others."""

from __future__ import annotations

import asyncio
import os
import uuid

import pytest

from gpu.test_gpu_worker import KERNEL, LIMITS, SMALL
from stark_worker.device.gpu_lock import GpuLock, gpu_identity
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import Check
from stark_worker.protocol.request import EvalRequest, Target
from stark_worker.scheduler.worker import devices
from worker_fixture import running_worker


def known_as(name: str) -> str:
    return asyncio.run(gpu_identity(name, os.environ | {"CUDA_VISIBLE_DEVICES": name}))


def test_a_gpu_has_one_identity_by_whatever_name():
    found = known_as(devices(Target.CUDA)[0])
    assert len(found) == 32
    assert known_as(f"GPU-{uuid.UUID(found)}") == found


def test_an_evaluation_waits_until_nobody_else_measures(tmp_path):
    name = devices(Target.CUDA)[0]
    if len(devices(Target.CUDA)) > 1:
        pytest.skip("another GPU would be used meanwhile")
    request = EvalRequest(SMALL, KERNEL[Target.TRITON], target=Target.TRITON, limits=LIMITS)

    async def occupied() -> None:
        async with GpuLock(known, name).hold():
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(worker.judge, request, 12.0)

    with running_worker(tmp_path / "cache", Target.TRITON) as worker:
        known = known_as(name)
        asyncio.run(occupied())
        report = worker.judge(request, 280.0)
        assert report.outcome is Outcome.OK, report.log
        assert Check.EXCLUSIVE not in report.checks
