"""How many calls in a row those make a sample of who are compared."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stark_worker.referee.sampling import equalise_bursts


def trial(burst, on_host=True, reuses_output_memory=False):
    return SimpleNamespace(burst=burst, on_host=on_host, reuses_output_memory=reuses_output_memory)


@pytest.mark.parametrize(
    ("trials", "bursts"),
    [
        ([trial(16), trial(9)], [9, 9]),
        ([trial(16), trial(1)], [16, 1]),
        ([trial(1, reuses_output_memory=True), trial(16)], [1, 1]),
        ([trial(1, on_host=False, reuses_output_memory=True), trial(16, on_host=False)], [1, 16]),
    ],
    ids=["nearly as fast", "far slower", "called by itself for its memory", "on a GPU, where clocks tell"],
)
def test_bursts_are_made_equal_where_waking_up_would_weigh_more_on_one(trials, bursts):
    equalise_bursts(trials)
    assert [each.burst for each in trials] == bursts
