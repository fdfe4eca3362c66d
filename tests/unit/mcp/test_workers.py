"""One evaluator for all users: opened for the first, closed after the last, and at once if that one was cancelled."""

from __future__ import annotations

import asyncio

from fakes import TASK
from stark.core.settings import EvaluationSettings
from stark.mcp.workers import Workers
from stark_worker.protocol.request import EvalRequest, Target

SETTINGS = EvaluationSettings(evaluator="test_workers:Counted")


class Counted:
    """Counts what is open, and remembers what it was asked."""

    opened: list[str]
    asked: list[EvalRequest]

    def __init__(self, settings: EvaluationSettings) -> None: ...

    async def __aenter__(self):
        Counted.opened.append("open")
        return self

    async def __aexit__(self, *error):
        await asyncio.sleep(0)
        Counted.opened.append("closed")

    async def evaluate(self, request):
        Counted.asked.append(request)


def counted(work, **options) -> list[str]:
    Counted.opened, Counted.asked = [], []
    asyncio.run(work(Workers(**options)))
    return Counted.opened


async def use(workers: Workers, ready: asyncio.Event | None = None) -> None:
    async with workers.lend(SETTINGS) as lent:
        if ready is not None:
            ready.set()
            await asyncio.sleep(3600)
        await lent.evaluator.evaluate(EvalRequest(TASK, TASK))


def test_users_at_once_and_one_after_the_other_share_one():
    async def work(workers):
        await asyncio.gather(*(use(workers) for _ in range(3)))
        await use(workers)
        await workers.close()

    assert counted(work) == ["open", "closed"]


def test_another_kind_of_device_has_its_own():
    async def work(workers):
        await use(workers)
        for target in (Target.CUDA, Target.TRITON):
            async with workers.lend(SETTINGS.model_copy(update={"target": target})):
                pass
        await workers.close()

    assert counted(work) == ["open", "open", "closed", "closed"]


def test_an_idle_one_is_closed_and_opened_again():
    async def work(workers):
        for _ in range(2):
            await use(workers)
            while Counted.opened[-1] != "closed":
                await asyncio.sleep(0.01)

    assert counted(work, idle_s=0.01) == ["open", "closed"] * 2


def test_a_cancelled_user_takes_it_along_unless_another_uses_it():
    async def work(workers):
        alone, first, second = asyncio.Event(), asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(use(workers, alone))
        await alone.wait()
        task.cancel()
        await asyncio.wait({task})
        assert Counted.opened == ["open", "closed"]  # before the call returns
        both = [asyncio.create_task(use(workers, event)) for event in (first, second)]
        await asyncio.gather(first.wait(), second.wait())
        both[0].cancel()
        await asyncio.wait({both[0]})
        assert Counted.opened == ["open", "closed", "open"]
        both[1].cancel()
        await asyncio.wait({both[1]})

    assert counted(work) == ["open", "closed"] * 2


def test_tasks_are_confined_unless_the_person_who_starts_the_server_trusts_them():
    counted(use)
    assert [request.untrusted_task for request in Counted.asked] == [True]
    counted(use, trust_tasks=True)
    assert [request.untrusted_task for request in Counted.asked] == [False]
