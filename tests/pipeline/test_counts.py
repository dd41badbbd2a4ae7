"""Counts add; rates come from sums."""

from pipeline.counts import Counts, count_generations
from tests.pipeline.made_up import generation, generations


def test_counts_add_field_by_field_and_position_by_position():
    left = Counts(1, 2, 3, 4, 5, 6, 7, 8, 9, (5, 3))
    right = Counts(10, 20, 30, 40, 50, 60, 70, 80, 90, (40, 30, 10))
    assert left + right == Counts(11, 22, 33, 44, 55, 66, 77, 88, 99, (45, 33, 10))
    assert sum([left, right], Counts()) == right + left


def test_a_rate_of_a_sum_is_not_the_mean_of_rates():
    few, many = Counts(num_draft_tokens=2, num_accepted_tokens=2), Counts(num_draft_tokens=98)
    assert (few + many).acceptance_rate == 0.02


def test_rates_without_a_denominator_are_none_and_plain_decoding_has_length_one():
    assert Counts().acceptance_rate is None
    assert Counts().mean_acceptance_length is None
    assert Counts(num_rounds=7).mean_acceptance_length == 1
    assert Counts(num_rounds=4, num_accepted_tokens=6).mean_acceptance_length == 2.5


def test_counting_a_table_counts_prompts_once_and_samples_each():
    table = generations([generation(0, 0), generation(0, 1), generation(5, 0, accepted_per_position=[1, 1, 1])])
    assert count_generations(table, num_errors=2) == Counts(4, 3, 2, 8, 3, 15, 6, 15, 9, (5, 3, 1))
    assert count_generations(generations([]), num_errors=1) == Counts(num_rows=1, num_errors=1)
