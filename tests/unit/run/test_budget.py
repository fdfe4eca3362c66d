"""Budgets hold with many calls in flight, because each sets its worst case aside first."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark.core.records import Spend
from stark.core.settings import BudgetSettings
from stark.run.budget import BudgetExhausted, Ledger

calls = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100)), max_size=30)


@given(calls=calls, limit=st.integers(0, 300), jobs=st.integers(1, 6))
def test_no_interleaving_of_calls_exceeds_the_limit(calls, limit, jobs):
    spent = []

    async def call(ledger: Ledger, gate: asyncio.Semaphore, worst: int, percent: int) -> None:
        async with gate:
            try:
                await ledger.reserve(Spend(worst, worst / 100))
            except BudgetExhausted:
                return
            await asyncio.sleep(0)
            actual = worst * percent // 100
            spent.append(actual)
            ledger.settle(Spend(worst, worst / 100), Spend(actual, actual / 100))

    async def everything() -> Ledger:
        ledger = Ledger(BudgetSettings(tokens=limit, usd=1e9), Spend())
        gate = asyncio.Semaphore(jobs)
        await asyncio.gather(*(call(ledger, gate, *each) for each in calls))
        return ledger

    ledger = asyncio.run(everything())
    assert ledger.spent.tokens == sum(spent) <= limit


def test_a_call_waits_for_what_others_may_give_back():
    async def story() -> list[str]:
        order = []
        ledger = Ledger(BudgetSettings(tokens=100), Spend())
        await ledger.reserve(Spend(80))

        async def second() -> None:
            await ledger.reserve(Spend(60))
            order.append("second")

        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.01)
        order.append("settled")
        ledger.settle(Spend(80), Spend(10))
        await waiting
        return order

    assert asyncio.run(story()) == ["settled", "second"]


def test_the_limit_that_was_met_is_named():
    async def reserve(limits: BudgetSettings) -> None:
        await Ledger(limits, Spend(10, 1.0)).reserve(Spend(10, 1.0))

    with pytest.raises(BudgetExhausted, match="tokens"):
        asyncio.run(reserve(BudgetSettings(tokens=19)))
    with pytest.raises(BudgetExhausted, match="money"):
        asyncio.run(reserve(BudgetSettings(usd=1.99)))
    asyncio.run(reserve(BudgetSettings(tokens=20, usd=2.0)))
