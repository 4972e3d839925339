"""Spread and quantile bounds: the truth is always inside, and the bounds are as tight as the facts allow."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ufwatch.core.spread import occupied, quantile_edges, second_moment_bounds, std_dev

EDGES = (0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 80.0, math.inf)
OBSERVATIONS = st.lists(
    st.one_of(st.floats(0.0, 0.2), st.floats(0.0, 500.0), st.sampled_from(EDGES[:-1])), min_size=1, max_size=60
)


def histogram(observations: list[float]) -> list[float]:
    counts = [0.0] * len(EDGES)
    for observation in observations:
        counts[bisect_left(EDGES, observation)] += 1.0
    return counts


def inside(low: float, truth: float, high: float) -> bool:
    slack = 1e-9 * max(1.0, truth)
    return low - slack <= truth <= high + slack


@settings(deadline=None)
@given(OBSERVATIONS)
def test_the_true_sum_of_squares_is_inside(observations: list[float]) -> None:
    low, high = second_moment_bounds(EDGES, histogram(observations), math.fsum(observations))
    assert inside(low, math.fsum(x * x for x in observations), high)


@settings(deadline=None)
@given(st.lists(OBSERVATIONS, min_size=1, max_size=8))
def test_bounds_add_up_over_scrapes_and_are_never_wider_than_those_of_the_sum(scrapes: list[list[float]]) -> None:
    bounds = [second_moment_bounds(EDGES, histogram(part), math.fsum(part)) for part in scrapes]
    low, high = math.fsum(low for low, _ in bounds), math.fsum(high for _, high in bounds)
    every = [observation for part in scrapes for observation in part]
    wide_low, wide_high = second_moment_bounds(EDGES, histogram(every), math.fsum(every))
    assert inside(low, math.fsum(x * x for x in every), high)
    slack = 1e-9 * max(1.0, wide_high)
    assert low >= wide_low - slack
    assert high <= wide_high + slack


@settings(deadline=None)
@given(OBSERVATIONS, st.floats(-1e6, 1e6), st.integers(0, len(EDGES) - 1))
def test_a_torn_scrape_gives_ordered_finite_bounds(observations: list[float], error: float, at: int) -> None:
    counts = histogram(observations)
    counts[at] -= 3.0
    low, high = second_moment_bounds(EDGES, counts, math.fsum(observations) + error)
    assert 0.0 <= low <= high < math.inf


@settings(deadline=None)
@given(st.floats(0.0, 500.0))
def test_one_observation_is_known_exactly(observation: float) -> None:
    low, high = second_moment_bounds(EDGES, histogram([observation]), observation)
    assert low == high == pytest.approx(observation**2)


def test_bounds_are_reached() -> None:
    edges = (1.0, 2.0, math.inf)
    # Two observations in (1, 2] that add up to 3: least 1.5 and 1.5, greatest 1 and 2.
    assert second_moment_bounds(edges, (0, 2, 0), 3.0) == (4.5, 5.0)
    # The overflow bucket: 2 + 2 + 6 is as uneven as three observations over 2 that add up to 10 can be.
    assert second_moment_bounds(edges, (0, 0, 3), 10.0) == pytest.approx((100 / 3, 44.0))


def test_a_sum_outside_what_the_buckets_allow_is_clamped() -> None:
    edges = (1.0, 2.0, math.inf)
    assert second_moment_bounds(edges, (0, 2, 0), 1.0) == (2.0, 2.0)
    assert second_moment_bounds(edges, (0, 2, 0), 9.0) == (8.0, 8.0)
    assert second_moment_bounds(edges, (0, 1, 0), 9.0) == (4.0, 4.0)
    assert second_moment_bounds(edges, (-5, 2, -1), 3.0) == (4.5, 5.0)


def test_nothing_observed_has_no_squares() -> None:
    assert second_moment_bounds(EDGES, [0.0] * len(EDGES), 0.0) == (0.0, 0.0)


@pytest.mark.parametrize("total", [math.nan, math.inf, -math.inf])
def test_an_impossible_sum_is_refused(total: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        second_moment_bounds(EDGES, [1.0] * len(EDGES), total)


def test_std_dev() -> None:
    assert std_dev(4, 8.0, 20.0) == 1.0
    assert std_dev(1, 3.0, 9.0) == 0.0
    assert std_dev(0, 0.0, 0.0) is None
    assert std_dev(math.nan, 0.0, 0.0) is None
    assert std_dev(2, 1.0, math.inf) is None
    assert std_dev(3, 0.3, 0.03 - 1e-12) == 0.0, "rounding never makes a negative variance"


def test_occupied() -> None:
    assert occupied((0, 3, 0, 1.0, -2)) == 2
    assert occupied(()) == 0


@settings(deadline=None)
@given(OBSERVATIONS, st.sampled_from((0.0, 0.5, 0.9, 0.95, 0.99, 1.0)))
def test_the_quantile_is_between_its_edges(observations: list[float], q: float) -> None:
    rank = max(1, math.ceil(q * len(observations) - 1e-9))
    truth = sorted(observations)[rank - 1]
    low, high = quantile_edges(EDGES, list(accumulate(histogram(observations))), q)
    assert low is not None
    assert low <= truth
    assert high is None or truth <= high
    assert (high is None) == (truth > EDGES[-2])


def test_quantile_edges() -> None:
    edges = (1.0, 2.0, math.inf)
    assert quantile_edges(edges, (0, 0, 0), 0.99) == (None, None)
    assert quantile_edges((), (), 0.99) == (None, None)
    assert quantile_edges(edges, (5, 5, 5), 0.99) == (0.0, 1.0)
    assert quantile_edges(edges, (0, 0, 5), 0.5) == (2.0, None)
    assert quantile_edges(edges, (99, 100, 100), 0.99) == (0.0, 1.0), "the 99th of 100 is still in the first bucket"
    assert quantile_edges(edges, (98, 100, 100), 0.99) == (1.0, 2.0)
    assert quantile_edges(edges, (7, 100, 100), 0.07) == (0.0, 1.0), "0.07 * 100 is more than 7 in floats"
    assert quantile_edges(edges, (0, 4, 4), 0.0) == (1.0, 2.0), "the least observation, not an empty bucket"
    assert quantile_edges(edges, (1, 2, math.nan), 0.5) == (None, None)
