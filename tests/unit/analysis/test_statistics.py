"""Intervals and significance: what they must say of data whose answer is known."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark.analysis.statistics import (
    MIN_PAIRS,
    MIN_TASKS,
    SIGNIFICANCE_LEVEL,
    mean_interval,
    permutation_test,
    rate_interval,
    sign_test,
)

VALUES = st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=3), min_size=1, max_size=8)
RATES = st.lists(st.lists(st.sampled_from((0.0, 1.0)), min_size=1, max_size=3), min_size=1, max_size=8)


@given(groups=VALUES)
def test_an_interval_is_about_the_mean_and_reproducible(groups):
    flat = [value for group in groups for value in group]
    found = mean_interval(groups)
    if found is None:
        means = [sum(group) / len(group) for group in groups]
        assert len(groups) < MIN_TASKS or max(means) - min(means) < 1e-6, "it cannot tell"
        return
    low, high = found
    assert (low + high) / 2 == pytest.approx(sum(flat) / len(flat), abs=1e-9)
    assert mean_interval(groups) == (low, high)


@pytest.mark.parametrize(("tasks", "quantile"), [(5, 2.77645), (6, 2.57058), (14, 2.16037), (101, 1.98397)])
def test_the_mean_of_tasks_has_students_interval(tasks, quantile):
    """The quantiles are from a printed table, odd and even degrees of freedom."""
    values = [float(number) for number in range(tasks)]
    mean, error = (tasks - 1) / 2, math.sqrt((tasks + 1) / 12)  # of evenly spaced numbers
    low, high = mean_interval([[value] for value in values])
    assert (low, high) == pytest.approx((mean - quantile * error, mean + quantile * error), abs=1e-4)
    assert mean_interval([[value] * 3 for value in values]) == pytest.approx((low, high)), "seeds are no tasks"


def test_a_task_with_more_seeds_pulls_the_mean_further():
    """Figures are means of runs, so that is what the doubt is about."""
    even, uneven = (
        mean_interval([[0.0], [0.0], [0.0], [0.0], [1.0]]),
        mean_interval([[0.0], [0.0], [0.0], [0.0], [1.0] * 3]),
    )
    assert uneven[1] - uneven[0] > even[1] - even[0]


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
        low, high = mean_interval([[rng.gauss(0, 1)] for _ in range(count)])
        widths.append(high - low)
    assert widths[1] < widths[0] / 5


@pytest.mark.parametrize("tasks", [5, 8, 14])
def test_an_interval_covers_the_truth_as_often_as_it_says(tasks):
    rng = Random(1)
    found = [mean_interval([[rng.gauss(0.3, 0.5)] for _ in range(tasks)]) for _ in range(1_000)]
    assert sum(low <= 0.3 <= high for low, high in found) / len(found) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(("tasks", "share"), [(5, 0.87), (8, 0.90), (14, 0.91), (30, 0.93)])
def test_where_half_of_the_tasks_count_as_1_an_interval_is_too_narrow(tasks, share):
    """The shares are in docs/reproduce.md."""
    rng = Random(1)

    def kept_log():
        return max(0.0, rng.gauss(0.0, 0.6))

    truth = 0.6 / math.sqrt(2 * math.pi)
    found = filter(None, (mean_interval([[kept_log()] for _ in range(tasks)]) for _ in range(2_000)))
    hits = [low <= truth <= high for low, high in found]
    assert sum(hits) / len(hits) == pytest.approx(share, abs=0.015)


@pytest.mark.parametrize("tasks", [6, 8])
def test_the_interval_of_a_difference_covers_it_as_often_as_it_says(tasks):
    rng = Random(2)
    found = [permutation_test([rng.gauss(0.3, 0.5) for _ in range(tasks)])[1] for _ in range(1_000)]
    assert sum(low <= 0.3 <= high for low, high in found) / len(found) >= 0.93


def test_of_many_normal_differences_the_test_has_students_interval():
    rng = Random(5)
    differences = [rng.gauss(0.3, 0.5) for _ in range(40)]
    assert permutation_test(differences)[1] == pytest.approx(mean_interval([[one] for one in differences]), abs=0.01)


def test_the_doubt_is_that_of_tasks():
    """Tasks that hardly differ while their seeds do leave less doubt than tasks that differ."""
    of_seeds = mean_interval([[0.0, 2.0], [0.1, 2.1]] * 4)
    of_tasks = mean_interval([[0.0, 0.1], [2.0, 2.1]] * 4)
    assert of_seeds[1] - of_seeds[0] < of_tasks[1] - of_tasks[0]
    assert mean_interval([[0.0, 2.0]] * 8) is None, "tasks that do not differ at all show no doubt, and there is some"


@pytest.mark.parametrize(
    ("differences", "p"), [([1.0] * 5, 2 / 32), ([0.5, -0.5], 1.0), ([0.0, 0.0, 0.0], 1.0), ([1.0, 1.0, -1.0], 1.0)]
)
def test_few_pairs_are_tested_exactly(differences, p):
    assert permutation_test(differences)[0] == p


def test_many_pairs_are_tested_by_sampling():
    rng = Random(2)
    noise = [rng.gauss(0, 1) for _ in range(40)]
    assert permutation_test([value - sum(noise) / 40 for value in noise])[0] > 0.9
    assert permutation_test([value + 2 for value in noise])[0] < 0.001


def test_rounding_is_no_difference():
    assert permutation_test([1e-12] * 8) == (1.0, None)
    assert permutation_test([0.1, 0.2, -0.3])[0] == 1.0, "which do not quite add up to 0"


DIFFERENCES = st.lists(st.floats(-5, 5), min_size=1, max_size=8)


@given(differences=DIFFERENCES)
def test_a_p_value_is_one_and_does_not_care_for_direction(differences):
    p, bounds = permutation_test(differences)
    assert 0 < p <= 1
    mirrored = permutation_test([-value for value in differences])
    assert mirrored == (p, bounds and (-bounds[1], -bounds[0]))


@given(differences=DIFFERENCES, shift=st.floats(-3, 3))
def test_an_interval_never_contradicts_its_test(differences, shift):
    p, bounds = permutation_test([value + shift for value in differences])
    if bounds is None:
        assert len(differences) < MIN_PAIRS or max(differences) - min(differences) < 1e-8
        return
    assert (bounds[0] <= 0 <= bounds[1]) == (p >= SIGNIFICANCE_LEVEL)
    assert bounds[0] <= sum(differences) / len(differences) + shift <= bounds[1]


def test_an_interval_by_sampling_does_not_contradict_its_test_either():
    rng = Random(3)
    for _ in range(10):
        p, (low, high) = permutation_test([rng.gauss(0.4, 1) for _ in range(20)])
        assert (low <= 0 <= high) == (p >= SIGNIFICANCE_LEVEL)


@pytest.mark.parametrize(
    ("one", "other", "p"),
    [(0, 0, 1.0), (0, 5, 2 / 32), (6, 0, 2 / 64), (1, 7, 18 / 256), (3, 3, 1.0), (0, 20, 2.0**-19)],
)
def test_outcomes_are_tested_by_their_signs(one, other, p):
    assert sign_test(one, other) == sign_test(other, one) == p


@given(one=st.integers(0, 6), other=st.integers(0, 6))
def test_outcomes_are_differences_of_one_size(one, other):
    assert sign_test(one, other) == permutation_test([1.0] * one + [-1.0] * other or [0.0])[0]
