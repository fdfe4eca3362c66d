"""Intervals and significance: what they must say of data whose answer is known."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark.inference import FEWEST, interval, permutation_p, rate_interval

VALUES = st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=3), min_size=1, max_size=8)
RATES = st.lists(st.lists(st.sampled_from((0.0, 1.0)), min_size=1, max_size=3), min_size=1, max_size=8)


@given(groups=VALUES)
def test_an_interval_lies_within_the_data_and_is_reproducible(groups):
    flat = [value for group in groups for value in group]
    found = interval(groups)
    if len(groups) < FEWEST or len(set(flat)) == 1:
        assert found is None, "resampling cannot tell"
        return
    low, high = found
    assert min(flat) - 1e-9 <= low <= high <= max(flat) + 1e-9
    assert interval(groups) == (low, high)


@given(groups=RATES)
def test_a_rate_lies_within_its_interval_which_never_has_no_width(groups):
    flat = [value for group in groups for value in group]
    low, high = rate_interval(groups)
    assert 0 <= low <= sum(flat) / len(flat) + 1e-9
    assert sum(flat) / len(flat) - 1e-9 <= high <= 1
    assert high - low > 0.2, "eight tasks leave doubt, whatever came of them"


@pytest.mark.parametrize(
    ("solved", "tasks", "bounds"), [(3, 3, (0.438, 1.0)), (0, 10, (0.0, 0.278)), (5, 10, (0.237, 0.763))]
)
def test_rates_have_wilsons_interval(solved, tasks, bounds):
    found = [[1.0]] * solved + [[0.0]] * (tasks - solved)
    assert rate_interval(found) == pytest.approx(bounds, abs=0.001)
    assert rate_interval([group * 3 for group in found]) == pytest.approx(bounds, abs=0.001), "seeds are no tasks"


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
