"""Tests on the interval of paired ratios, and on what it says of a change."""

import random

import pytest

from benchmarks.rounds.pairs.interval import Interval


def test_an_interval_of_nine_pairs_leaves_out_one_ratio_at_each_end_and_needs_six():
    # P(at most 1 of 9 below the median) = 10 / 512, twice that is 3.9 %; with 2 left out it would be 18 %.
    assert Interval.of([1.0, 0.9, 1.1, 0.96, 0.97, 0.98, 0.99, 1.01, 1.02]) == Interval(0.96, 0.99, 1.02)
    with pytest.raises(ValueError, match="at least 6 pairs, got 5"):
        Interval.of([1.0] * 5)


@pytest.mark.parametrize("number", [9, 20])
def test_an_interval_holds_the_true_median_in_at_least_95_of_100_tries(number):
    draws = random.Random(1)
    found = [Interval.of([draws.lognormvariate(0, 0.1) for _ in range(number)]) for _ in range(2000)]
    assert sum(interval.low <= 1 <= interval.high for interval in found) / 2000 > 0.94


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.98, 1.01, "within 2 %"),
        (0.979, 1.0, "unclear"),
        (0.98, 1.02, "unclear"),
        (0.95, 0.979, "slower"),
        (1.1, 1.2, "within 2 %"),
    ],
)
def test_a_verdict_needs_a_narrow_interval_above_98_percent(low, high, verdict):
    assert Interval(low, (low + high) / 2, high).verdict == verdict
