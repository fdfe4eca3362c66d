"""Candidates that leave thousands of files: no verdict waits for their removal, and nothing is left in the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from candidate_sources import at_import, forward
from conformance.evaluator import RIGHT
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.request import Limits, Target
from stark_worker.scheduler.worker import Worker
from worker_fixture import processes_below

MANY = 4_000  # folders, which take long enough to remove to be watched
ENDLESS = "\n        ".join(
    (
        "number = 0",
        "while True:",
        "    number += 1",
        "    os.makedirs(f'd{number}')",
        "    open(f'd{number}/file', 'wb').close()",
    )
)
DEEP = "\nfor _ in range(1_500):\n    os.mkdir('d')\n    os.chdir('d')\nraise ValueError"


def candidates(worker: Worker) -> list[Path]:
    return list(Path(worker._folder.name).glob("candidate-*"))


def written(worker: Worker) -> int:
    """How many folders a candidate has made; a candidate without a folder has made none."""
    with contextlib.suppress(FileNotFoundError):
        return sum(1 for folder in candidates(worker) for _ in folder.iterdir())
    return 0


@contextlib.asynccontextmanager
async def watched(worker: Worker) -> AsyncIterator[list[int]]:
    """How many folders were seen from the event loop, again and again: it does not stand still while they go."""
    counts = [0]

    async def look() -> None:
        while True:
            counts.append(written(worker))
            await asyncio.sleep(0.02)

    looking = asyncio.create_task(look())
    try:
        yield counts
    finally:
        looking.cancel()


@contextlib.asynccontextmanager
async def warm(shared: Path) -> AsyncIterator[Worker]:
    async with Worker(Target.CPU, shared, allow_weak_sandbox=True) as worker:
        assert (await worker.judge(RIGHT)).outcome is Outcome.OK
        yield worker


def test_a_cancelled_caller_does_not_wait_and_what_was_written_goes_before_the_next_trial(tmp_path):
    endless = replace(RIGHT, candidate_source=forward(ENDLESS), limits=Limits(60.0, 60.0))

    async def cancel_midway() -> None:
        async with warm(tmp_path) as worker, watched(worker) as counts:
            judging = asyncio.create_task(worker.judge(endless))
            while counts[-1] < MANY:
                await asyncio.sleep(0.02)
            judging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await judging
            assert written(worker), "it was not waited for"
            assert "stark-candidate" not in processes_below(os.getpid())
            assert (await worker.judge(RIGHT)).outcome is Outcome.OK
            assert not [folder for folder in candidates(worker) if len(list(folder.iterdir())) > 100]
            assert any(100 < count < max(counts) for count in counts[counts.index(max(counts)) :])

    asyncio.run(cancel_midway())


def test_nothing_is_left_when_the_worker_closes_at_once(tmp_path):
    endless = replace(RIGHT, candidate_source=forward(ENDLESS), limits=Limits(60.0, 3.0))

    async def close_at_once() -> Path:
        async with warm(tmp_path) as worker:
            assert (await worker.judge(endless)).outcome is Outcome.TIMEOUT
            assert written(worker), "the verdict did not wait"
            return Path(worker._folder.name)

    assert not asyncio.run(close_at_once()).exists()


def test_folders_in_each_other_are_removed_too(tmp_path):
    async def close_at_once() -> Path:
        async with warm(tmp_path) as worker:
            report = await worker.judge(replace(RIGHT, candidate_source=at_import(DEEP)))
            assert report.outcome is Outcome.COMPILE_ERROR
            assert (await worker.judge(RIGHT)).outcome is Outcome.OK
            return Path(worker._folder.name)

    assert not asyncio.run(close_at_once()).exists()
