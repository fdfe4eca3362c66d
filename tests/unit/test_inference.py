"""Intervals and significance: what they must say of data whose answer is known."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark.inference import interval, permutation_p

VALUES = st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=3), min_size=1, max_size=6)


@given(groups=VALUES)
def test_an_interval_lies_within_the_data_and_is_reproducible(groups):
    low, high = interval(groups)
    flat = [value for group in groups for value in group]
    assert min(flat) - 1e-9 <= low <= high <= max(flat) + 1e-9
    assert interval(groups) == (low, high)


def test_more_tasks_make_an_interval_narrower():
    rng = Random(0)
    widths = []
    for count in (10, 1000):
        low, high = interval([[rng.gauss(0, 1)] for _ in range(count)])
        widths.append(high - low)
    assert widths[1] < widths[0] / 5


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    rng = Random(1)
    hits = 0
    for _ in range(60):
        low, high = interval([[rng.gauss(3, 1)] for _ in range(40)])
        hits += low <= 3 <= high
    assert hits >= 50


def test_seeds_are_resampled_within_their_task():
    """Tasks that agree while their seeds differ leave less doubt than tasks that differ."""
    of_seeds = interval([[0.0, 2.0]] * 8)
    of_tasks = interval([[0.0, 0.0], [2.0, 2.0]] * 4)
    assert of_seeds[1] - of_seeds[0] < of_tasks[1] - of_tasks[0]


@pytest.mark.parametrize(
    ("differences", "p"), [([1.0] * 5, 2 / 32), ([0.5, -0.5], 1.0), ([0.0, 0.0, 0.0], 1.0), ([1.0, 1.0, -1.0], 1.0)]
)
def test_few_pairs_are_tested_exactly(differences, p):
    assert permutation_p(differences) == p


def test_many_pairs_are_tested_by_sampling():
    rng = Random(2)
    noise = [rng.gauss(0, 1) for _ in range(40)]
    assert permutation_p([value - sum(noise) / 40 for value in noise]) > 0.9
    assert permutation_p([value + 2 for value in noise]) < 0.001


@given(differences=st.lists(st.floats(-5, 5), min_size=1, max_size=8))
def test_a_p_value_is_one_and_does_not_care_for_direction(differences):
    p = permutation_p(differences)
    assert 0 < p <= 1
    assert permutation_p([-value for value in differences]) == p
