"""A GPU is known by what its driver says, so that processes that name it otherwise take turns. Run as the others."""

from __future__ import annotations

import asyncio
import os
import uuid

import pytest

from gpu.test_gpu_worker import KERNEL, LIMITS, SMALL
from stark_worker.device.gpu_lock import Turns, identity
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.request import EvalRequest, Target
from stark_worker.scheduler.worker import devices
from worker_fixture import stationed


def known_as(name: str) -> str:
    return asyncio.run(identity(name, os.environ | {"CUDA_VISIBLE_DEVICES": name}))


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
        async with Turns(known, name).alone():
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(station.judge, request, 20.0)

    with stationed(tmp_path / "cache", Target.TRITON) as station:
        known = known_as(name)
        asyncio.run(occupied())
        report = station.judge(request, 280.0)
        assert report.outcome is Outcome.OK, report.log
        assert "exclusive" not in report.checks
