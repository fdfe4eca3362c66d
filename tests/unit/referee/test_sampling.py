"""How many calls in a row those make a sample of who are compared."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stark_worker.referee.sampling import make_alike


def trial(burst, on_host=True, keeps_memory=False):
    return SimpleNamespace(burst=burst, on_host=on_host, keeps_memory=keeps_memory)


@pytest.mark.parametrize(
    ("trials", "bursts"),
    [
        ([trial(16), trial(9)], [9, 9]),
        ([trial(16), trial(1)], [16, 1]),
        ([trial(1, keeps_memory=True), trial(16)], [1, 1]),
        ([trial(1, on_host=False, keeps_memory=True), trial(16, on_host=False)], [1, 16]),
    ],
    ids=["nearly as fast", "far slower", "called by itself for its memory", "on a GPU, where clocks tell"],
)
def test_bursts_are_made_alike_where_waking_up_would_weigh_more_on_one(trials, bursts):
    make_alike(trials)
    assert [each.burst for each in trials] == bursts
