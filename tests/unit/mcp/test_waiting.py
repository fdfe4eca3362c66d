"""Long work shows signs, and ends with its call."""

from __future__ import annotations

import asyncio
import itertools

import anyio
import pytest

from stark.mcp.waiting import Activity, wait_with_signs


def test_progress_is_strictly_increasing_and_names_the_step():
    seen = []

    async def report(seconds: float, text: str) -> None:
        seen.append((seconds, text))

    async def work(activity: Activity) -> str:
        activity.begin("first")
        while len(seen) < 4:
            await asyncio.sleep(0)
        activity.begin("second")
        while len(seen) < 8:
            await asyncio.sleep(0)
        return "done"

    activity = Activity("begin")
    assert asyncio.run(wait_with_signs(work(activity), report, activity, every_s=0.0)) == "done"
    assert all(one[0] < other[0] for one, other in itertools.pairwise(seen))
    assert [text.partition(",")[0] for _, text in seen][::4] == ["begin", "second"]


def test_a_cancelled_call_waits_until_its_work_has_cleaned_up():
    """The SDK's cancelling interrupts every await of the handler; the work's own clean-up must not be."""
    steps = []

    async def silent(seconds: float, text: str) -> None: ...

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            steps.append("cleaned up")

    async def main() -> None:
        with anyio.CancelScope() as scope:
            asyncio.get_running_loop().call_later(0.01, scope.cancel)
            await wait_with_signs(work(), silent, Activity("x"))
        steps.append("returned")

    asyncio.run(main())
    assert steps == ["cleaned up", "returned"]


def test_an_error_of_the_work_is_raised():
    async def silent(seconds: float, text: str) -> None: ...

    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(wait_with_signs(work(), silent, Activity("x")))
