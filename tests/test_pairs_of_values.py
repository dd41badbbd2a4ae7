"""`make test` runs few of many combinations, and every two values are together in one of them."""

from itertools import combinations, product

import pytest

from tests.pairs_of_values import covering, every_pair

AXES = (["none", "model", "suffix", "ngram"], [1, 3, 8], [1, 7, 64], [True, False])


def test_every_combination_is_there_once() -> None:
    assert sorted(str(param.values) for param in every_pair(*AXES)) == sorted(map(str, product(*AXES)))


@pytest.mark.parametrize("axes", [AXES, AXES[:2], ([1, 2], [1, 2], [2, 1])])
def test_every_pair_of_values_is_in_a_combination_that_is_not_slow(axes: tuple[list[object], ...]) -> None:
    fast = [param.values for param in every_pair(*axes) if not param.marks]
    for one, other in combinations(range(len(axes)), 2):
        assert {(values[one], values[other]) for values in fast} == set(product(axes[one], axes[other]))


def test_few_combinations_hold_every_pair() -> None:
    assert sum(not param.marks for param in every_pair(*AXES)) <= 15


def test_a_covering_of_many_axes_holds_every_pair_in_hardly_more_combinations_than_the_longest_two_have() -> None:
    axes = (range(12), range(8), range(5), range(9), range(6))
    found = covering(*axes)
    for one, other in combinations(range(len(axes)), 2):
        assert {(values[one], values[other]) for values in found} == set(product(axes[one], axes[other]))
    assert len(found) == len(set(found)) <= 1.1 * 12 * 9
