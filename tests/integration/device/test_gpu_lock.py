"""Processes that measure on one GPU take turns. The device is a stand-in, the processes and locks are real."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from stark_worker.device import gpu_lock
from stark_worker.device.gpu_lock import GpuLock, gpu_identity
from stark_worker.protocol.errors import MachineryFault
from stark_worker.protocol.request import Target
from stark_worker.scheduler.worker import Worker
from subprocess_pair import started

DEVICE = "stand-in"
FEW, TURN_S = 10, 0.05


def hold(pipe: Connection, folder: Path) -> None:
    """Hold the lock until a message comes."""

    async def one() -> None:
        async with GpuLock(DEVICE, DEVICE, folder).hold():
            pipe.send("mine")
            pipe.recv()

    asyncio.run(one())


def measure(pipe: Connection, folder: Path) -> None:
    """Take some turns one right after another, and send the begin and end of each."""

    async def some() -> list[tuple[float, float]]:
        spans, mine = [], GpuLock(DEVICE, DEVICE, folder)
        for _ in range(FEW):
            async with mine.hold():
                begin = time.monotonic()
                await asyncio.sleep(TURN_S)
                spans.append((begin, time.monotonic()))
        return spans

    pipe.send("ready")
    pipe.recv()
    pipe.send(asyncio.run(some()))


def try_hold(folder: Path, within_s: float | None = None) -> str | None:
    async def one() -> str | None:
        async with asyncio.timeout(within_s), GpuLock(DEVICE, DEVICE, folder).hold() as obstacle:
            return obstacle

    return asyncio.run(one())


def test_turns_of_two_processes_never_overlap_and_neither_is_left_out(tmp_path):
    with started(measure, tmp_path) as (_, one), started(measure, tmp_path) as (_, other):
        for pipe in (one, other):
            pipe.recv()
        for pipe in (one, other):
            pipe.send("go")
        first, second = one.recv(), other.recv()
    spans = sorted([*first, *second])
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    order = ["first" if span in first else "second" for span in spans]
    changes = sum(before != after for before, after in itertools.pairwise(order))
    assert changes >= 3  # a process that had its turn lets the other one go first


def test_a_waiting_process_gets_its_turn_when_the_holder_is_killed(tmp_path):
    with started(hold, tmp_path) as (process, pipe):
        assert pipe.recv() == "mine"
        with pytest.raises(TimeoutError):
            try_hold(tmp_path, within_s=0.3)
        os.kill(process.pid, signal.SIGKILL)
        assert try_hold(tmp_path) is None


def test_waiting_leaves_the_event_loop_free_and_is_logged(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(gpu_lock, "WARN_AFTER_S", 0.1)

    async def wait() -> int:
        beats = 0
        turn = asyncio.create_task(anext(aiter(_entered(GpuLock(DEVICE, "7", tmp_path)))))
        while beats < 10:
            await asyncio.sleep(0.05)
            beats += 1
        assert not turn.done()
        pipe.send("go on")
        await turn
        return beats

    with started(hold, tmp_path) as (_, pipe), caplog.at_level(logging.WARNING):
        assert pipe.recv() == "mine"
        assert asyncio.run(wait()) == 10
    (record,) = caplog.records
    assert record.getMessage().startswith("Another process measures on GPU 7; this one has waited for its turn for")


async def _entered(mine: GpuLock):
    async with mine.hold():
        yield


def test_the_holder_sees_that_another_process_waits(tmp_path):
    mine = GpuLock(DEVICE, DEVICE, tmp_path)

    async def look(other) -> bool:
        async with mine.hold():
            before = mine.has_waiters()
            other.send("go")
            while not mine.has_waiters():
                await asyncio.sleep(0.01)
            return before

    with started(measure, tmp_path) as (_, other):
        other.recv()
        assert not asyncio.run(look(other))
        assert len(other.recv()) == FEW


def test_a_deleted_lock_file_keeps_no_process_out_and_lets_none_in(tmp_path):
    try_hold(tmp_path)
    with started(hold, tmp_path) as (_, pipe):
        assert pipe.recv() == "mine"
        for file in tmp_path.iterdir():  # those of the holder: a mistake, but not one that lasts
            file.unlink()
        assert try_hold(tmp_path) is None


def test_files_of_another_user_will_do(tmp_path):
    try_hold(tmp_path)
    for file in tmp_path.iterdir():
        assert file.stat().st_mode & 0o777 == 0o644
        file.chmod(0o444)
    assert try_hold(tmp_path) is None


def test_where_nothing_can_be_locked_that_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert "No such file or directory" in (try_hold(tmp_path / "missing") or "")
    assert "Others may measure on GPU stand-in at the same time" in caplog.text


def test_a_device_that_no_driver_knows_is_known_by_its_name():
    assert asyncio.run(gpu_identity(DEVICE, {"CUDA_VISIBLE_DEVICES": DEVICE})) == DEVICE


def test_a_worker_waits_for_its_turn_before_it_touches_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", DEVICE)  # which is on no machine, so that nothing can be measured on it

    async def measured() -> None:
        async with Worker(Target.CUDA, tmp_path / "cache", locks=tmp_path) as worker:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.0):
                    await worker.device()
            pipe.send("go on")
            with pytest.raises(MachineryFault, match="needs a CUDA GPU"):
                await worker.device()

    with started(hold, tmp_path) as (_, pipe):
        assert pipe.recv() == "mine"
        asyncio.run(measured())


def test_the_cpu_has_no_turns(tmp_path):
    async def measured() -> str:
        async with Worker(Target.CPU, tmp_path / "cache", locks=tmp_path / "missing") as worker:
            return (await worker.device()).kind

    assert asyncio.run(measured()) == "cpu"
    assert not (tmp_path / "missing").exists()
