"""The combinations of values that `make test` runs: a small set that holds every pair of values.

A fault between two settings shows in any combination that has both (Cohen et al., "The AETG System", 1997).
"""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest

Pairs = set[tuple[tuple[int, int], ...]]


def every_pair(*axes: Sequence[Any]) -> list[Any]:
    """Return every combination of the values of two or more axes; those that no pair needs are marked slow."""
    assert len(axes) > 1, "one axis has no pairs: all of it would be slow"
    choices = list(product(*(range(len(axis)) for axis in axes)))
    needed = _needed(choices)
    return [
        pytest.param(
            *(axis[index] for axis, index in zip(axes, choice, strict=True)),
            marks=[] if choice in needed else [pytest.mark.slow],
        )
        for choice in choices
    ]


def covering(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return few combinations of the values of many axes that hold every pair, and no others.

    Each begins with a pair that is missing, and takes on every other axis the value with the most missing pairs.
    """
    missing = {pair for axis in combinations(range(len(axes)), 2) for pair in _product_of(axes, *axis)}
    found = []
    while missing:
        chosen = dict(min(missing))
        for axis in (number for number in range(len(axes)) if number not in chosen):
            gains = [
                sum(tuple(sorted([(axis, value), other])) in missing for other in chosen.items())
                for value in range(len(axes[axis]))
            ]
            best = [value for value, gain in enumerate(gains) if gain == max(gains)]
            chosen[axis] = best[len(found) % len(best)]
        missing -= _pairs(tuple(chosen[axis] for axis in range(len(axes))))
        found.append(tuple(axes[axis][chosen[axis]] for axis in range(len(axes))))
    return found


def _product_of(axes: Sequence[Sequence[Any]], first: int, second: int) -> Pairs:
    return {((first, a), (second, b)) for a in range(len(axes[first])) for b in range(len(axes[second]))}


def _needed(choices: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return choices that hold every pair, each time the first of those with the most pairs still missing."""
    needed, missing = set(), set().union(*map(_pairs, choices))
    while missing:
        best = max(choices, key=lambda choice: len(_pairs(choice) & missing))
        needed.add(best)
        missing -= _pairs(best)
    return needed


def _pairs(choice: tuple[int, ...]) -> Pairs:
    return set(combinations(enumerate(choice), 2))
