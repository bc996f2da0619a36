from __future__ import annotations

import math
import statistics as standard
from statistics import NormalDist
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.acceptance.statistics import (
    faster_half,
    median,
    percentile,
    standard_deviation,
    student_quantile,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TIMES = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("error", "freedom", "quantile"),
    [
        (0.05, 1, 12.7062),
        (0.05, 2, 4.30265),
        (0.05, 3, 3.18245),
        (0.05, 4, 2.77645),
        (0.05, 10, 2.22814),
        (0.05, 120, 1.97993),
        (0.5, 7, 0.711142),
        (0.01, 5, 4.03214),
        (0.001, 3, 12.9240),
        (0.001, 8, 5.04131),
        (0.001, 40, 3.55097),
    ],
)
def test_quantiles_of_student_are_those_of_the_tables(error: float, freedom: int, quantile: float) -> None:
    assert student_quantile(error, freedom) == pytest.approx(quantile, rel=1e-5)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30, 200])
@pytest.mark.parametrize("error", [0.3, 0.05, 0.002, 2e-5])
def test_quantiles_of_student_agree_with_its_distribution(error: float, freedom: int) -> None:
    """Against a numeric integral of the density: another way to the same number."""
    quantile = student_quantile(error, freedom)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    # With x = quantile / u the upper tail is an integral over (0, 1).
    steps = 4000
    tail = 0.0
    for step in range(steps):
        u = (step + 0.5) / steps
        x = quantile / u
        tail += scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2) * quantile / u**2 / steps
    assert 2 * tail == pytest.approx(error, rel=2e-3)


def test_quantiles_of_student_become_those_of_the_normal_distribution() -> None:
    assert student_quantile(0.01, 100_000) == pytest.approx(-NormalDist().inv_cdf(0.005), rel=1e-4)


@pytest.mark.parametrize(("error", "freedom"), [(0.0, 5), (1.0, 5), (-0.1, 5), (0.05, 0)])
def test_arguments_out_of_range_are_refused(error: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        student_quantile(error, freedom)


@given(TIMES)
def test_the_median_is_that_of_the_standard_library(values: list[float]) -> None:
    assert median(values) == pytest.approx(standard.median(values))


@given(TIMES)
def test_the_faster_half_is_between_the_least_and_the_median(values: list[float]) -> None:
    assert min(values) <= faster_half(values) * (1 + 1e-12)
    assert faster_half(values) <= median(values) * (1 + 1e-12)


@given(TIMES, st.floats(0, 1e6))
def test_a_disturbance_of_slow_values_does_not_reach_the_faster_half(
    values: list[float], more: float
) -> None:
    ordered = sorted(values)
    half = (len(ordered) + 1) // 2
    assert faster_half(ordered[:half] + [value + more for value in ordered[half:]]) == faster_half(ordered)


@given(TIMES, st.integers(1, 100))
def test_a_percentile_occurred_and_so_many_are_not_above_it(values: list[float], percent: int) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < percent * len(values)


def test_percentiles_of_a_hundred() -> None:
    values = list(range(100, 0, -1))
    assert (percentile(values, 95), percentile(values, 100), percentile([7.0], 50)) == (95, 100, 7.0)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=40))
def test_the_standard_deviation_is_that_of_the_standard_library(values: list[float]) -> None:
    assert standard_deviation(values) == pytest.approx(standard.stdev(values), abs=1e-9)


@pytest.mark.parametrize(
    "estimate", [median, faster_half, standard_deviation, lambda values: percentile(values, 50)]
)
def test_no_values_have_no_estimate(estimate: Callable[[list[float]], float]) -> None:
    with pytest.raises(ValueError, match="values"):
        estimate([])
